"""One SGLang engine: its server, and the calls that the trainer and the manager make on it.

Guarantees: the server keeps its port for the engine's whole life, across crashes and restarts. ``start`` returns once
it serves, or raises with the last lines of its log. ``stop`` or the actor's death leaves nothing behind. An engine that
spans machines starts, ends and dies as a whole. A call returns once the server has done the work; one that SGLang
refuses raises :class:`~slime.exceptions.EngineError` with SGLang's message.

Memory (``--offload-rollout``): requests are held from ``sleep`` until all memory is back; none is refused or runs
without it. Each part is requested back once, because SGLang's server dies when asked twice, so both calls may be
repeated. A restarted server has all its memory.

:class:`SGLangEngine` is a plain class; ``slime.ray.engine_group`` makes a Ray actor of it.
"""

from __future__ import annotations

import base64
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import httpx

from groundwork.network import find_available_port
from groundwork.start_timeline import Step, mark
from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.backends.sglang_utils.engine_process import ANSWER_SECONDS, EngineProcess, OtherNodes
from slime.backends.sglang_utils.server_hooks import IN_USE
from slime.backends.sglang_utils.startup_log import LINES, Startup
from slime.exceptions import EngineError, EngineNodeLostError
from slime.weight_sync.people import signature
from slime.weight_sync.remote_engine import RemoteProcess

PauseMode = Literal["retract", "in_place", "abort"]
WEIGHTS: tuple[str, ...] = ("weights",)
CACHE: tuple[str, ...] = ("kv_cache", "cuda_graph")
"""SGLang's names of the memory parts. Weights come back empty unless they have a host copy."""

logger = logging.getLogger(__name__)

START_TIMEOUT_SECONDS = 1800.0
CPU_START_TIMEOUT_SECONDS = 300.0
CALL_TIMEOUT_SECONDS = 600.0
_POLL_SECONDS = 0.1
_HEALTH_SECONDS = 5.0


class SGLangEngine:
    """Owns one server. Methods block until the server answers; thread-safe, except for sleep and wake.

    Attributes:
        process: the server's process, or that of the engine's first machine.
    """

    process_type: type[EngineProcess] = EngineProcess
    start_lines = LINES
    """What the server logs at the end of a step of its start."""

    def __init__(self, args: Arguments, spec: EngineSpec, port: int = 0, others: Sequence[RemoteProcess] = ()) -> None:
        """``others``: the processes on the engine's other machines, in order."""
        self.process = self.process_type(args, spec)
        self._args = args
        self._spec = spec
        self._cpu = args.device == "cpu"
        self._port = port
        self._others = OtherNodes(spec.name, others)
        self._starts = 0
        self._away: set[str] = set()
        self._started_at = self._silent_since = 0.0
        self._lock = threading.RLock()
        patience = max(CALL_TIMEOUT_SECONDS, 60.0 * args.distributed_timeout_minutes)
        self._client = httpx.Client(timeout=patience, trust_env=False)

    # Processes

    def start(self, hold: bool = False) -> str:
        """Start the server unless it runs, wait until it serves, and return its URL.

        ``hold``: hold all requests from the start until ``continue_generation``.
        """
        with self._lock:
            if self.alive():
                return self.url()
            self._mark(Step.LOADED)
            self.kill()
            self._port = self._port or find_available_port(host=self._spec.host)
            several = self._spec.nodes > 1
            rendezvous = f"{self._spec.host}:{find_available_port(host=self._spec.host)}" if several else ""
            try:
                self._others.launch(rendezvous)
                self.process.launch(self._port, rendezvous=rendezvous, hold=hold)
                self._starts += 1
                self._away = set()
                self._mark(Step.STARTED)
                self._wait_until_it_serves()
            except BaseException:
                self.kill()
                raise
            self._started_at, self._silent_since = time.monotonic(), 0.0
            return self.url()

    def _wait_until_it_serves(self) -> None:
        timeout = CPU_START_TIMEOUT_SECONDS if self._cpu else START_TIMEOUT_SECONDS
        deadline = time.monotonic() + timeout
        startup = Startup(self.process.log_path, None if self._cpu else self.process.pid, self.start_lines)
        while time.monotonic() < deadline:
            if not self.alive():
                raise EngineError(self._explain(f"ended with status {self._statuses()} while it started"))
            serves = self.health()
            for step in startup.steps():
                self._mark(step)
            if serves:
                self._mark(Step.LISTENS)
                return
            time.sleep(_POLL_SECONDS)
        raise EngineError(self._explain(f"did not serve within {timeout:.0f} s"))

    def _mark(self, step: Step) -> None:
        mark(self._args.run_dir, self._spec.name, step)

    def _explain(self, problem: str) -> str:
        """Return ``problem`` with the ends of the logs on all machines."""
        return "\n".join(filter(None, (self.process.explain(problem), self._others.explain())))

    def _statuses(self) -> str:
        """Return the exit status of the process on each machine, None for a running one."""
        return ", ".join(map(str, (self.process.returncode(), *self._others.returncodes())))

    def is_dead(self) -> bool:
        """Return whether the server's process is gone or hangs."""
        with self._lock:
            return not self.alive() or self.hangs()

    def restart_if_dead(self, hold: bool = False) -> bool:
        """Restart the server on its port if :meth:`is_dead`; return whether it was. ``hold``: see :meth:`start`."""
        with self._lock:
            if not self.is_dead():
                return False
            logger.warning("%s %s; restarting it on port %d", self._spec.name, self._why_dead(), self._port)
            self.kill()
            self.start(hold)
            return True

    def _why_dead(self) -> str:
        if not self.alive():
            return f"is dead (status {self._statuses()})"
        stopped = ", and a signal has stopped a process of it" if self.process.stopped() else ""
        return f"has failed its health checks for {time.monotonic() - self._silent_since:.0f} s{stopped}"

    def hangs(self) -> bool:
        """Return whether no health check has succeeded for ``--rollout-health-check-timeout`` seconds.

        An engine with a stopped process is not healthy, even if its server still answers. Returns False during the first
        ``--rollout-health-check-first-wait`` seconds after the start.
        """
        if self.health() and not self.process.stopped():
            self._silent_since = 0.0
            return False
        now = time.monotonic()
        self._silent_since = self._silent_since or now
        patient = now - self._started_at < self._args.rollout_health_check_first_wait
        return not patient and now - self._silent_since >= self._args.rollout_health_check_timeout

    def stop(self) -> None:
        """End the server and everything it started, on all machines at once; a no-op if it is not running."""
        with self._lock:
            others = self._others.stop()
            self.process.stop()
            others.unanswered(ANSWER_SECONDS)

    def kill(self) -> None:
        """Kill the server with SIGKILL on all machines, like a crash; it can be restarted."""
        with self._lock:
            others = self._others.kill()
            self.process.kill()
            others.unanswered(ANSWER_SECONDS)

    def starts(self) -> int:
        """Number of starts of the server."""
        return self._starts

    def end_failed_update(self, starts: int) -> None:
        """Kill the server if it is still that of ``starts``, because it may hold a mix of old and new weights.

        No-op during start or stop. Waits for a running health check, also of its other machines.
        """
        others = ANSWER_SECONDS if self._spec.nodes > 1 else 0.0
        if not self._lock.acquire(timeout=2 * _HEALTH_SECONDS + others):
            return
        try:
            if self._starts == starts:
                self.kill()
        finally:
            self._lock.release()

    def alive(self) -> bool:
        """Return whether the processes on all machines run."""
        return self.process.alive() and self._others.alive()

    def has_ended(self) -> bool:
        """Return whether any process of the engine has ended, without calling the server, which may be busy."""
        try:
            return not self.alive()
        except EngineNodeLostError:
            return True

    def hosts(self) -> list[str]:
        """Return the names of the machines (and containers) of the engine's ranks."""
        return self.process.hosts() + self._others.hosts()

    def health(self) -> bool:
        """Return whether the server answers on its port right now."""
        try:
            return self._client.get(f"{self.url()}/health", timeout=_HEALTH_SECONDS).status_code == 200
        except httpx.TransportError:
            return False

    def url(self) -> str:
        """Return the server's URL, constant for the engine's life; empty before the first start."""
        return f"http://{self._spec.host}:{self._port}" if self._port else ""

    def status(self) -> dict[str, Any]:
        """Return facts for logs and tests: name, url, pid, number of starts, log file."""
        return {
            "name": self._spec.name,
            "url": self.url(),
            "pid": self.process.pid,
            "starts": self._starts,
            "log_path": str(self.process.log_path),
        }

    # Memory

    def sleep(self) -> None:
        """Hold all requests, empty the prefix cache, and release all memory."""
        present = [part for part in WEIGHTS + CACHE if part not in self._away]
        if not present:
            return
        self.pause_generation("retract")
        self._post("/release_memory_occupation", tags=present)
        self._away.update(present)

    def wake(self, parts: tuple[str, ...]) -> None:
        """Take ``parts`` back; continue the requests once no memory is released any more."""
        back = [part for part in parts if part in self._away]
        if not back:
            return
        self._post("/resume_memory_occupation", tags=back)
        self._away.difference_update(back)
        self.continue_generation()

    # An update of the weights

    def num_weight_ranks(self) -> int:
        """Return this engine's number of ranks in the weight update group."""
        return self._spec.nodes if self._cpu else self._spec.num_gpus

    def init_weights_update_group(
        self, master_addr: str, master_port: int, rank_offset: int, world_size: int, group_name: str, backend: str
    ) -> None:
        """Join the trainer's group and wait for all ranks; first leave a dead trainer's group of the same name."""
        self.destroy_weights_update_group(group_name)
        self._post(
            "/init_weights_update_group",
            master_address=master_addr,
            master_port=master_port,
            rank_offset=rank_offset,
            world_size=world_size,
            group_name=group_name,
            backend=backend,
        )

    def destroy_weights_update_group(self, group_name: str) -> None:
        """Leave the trainer's group; a no-op for a restarted engine, which is in no group."""
        try:
            self._post("/destroy_weights_update_group", group_name=group_name)
        except EngineError as error:
            if "does not exist" not in str(error):
                raise

    def pause_generation(self, mode: PauseMode = "retract") -> None:
        """Hold all requests; new ones wait. ``retract`` recomputes the running ones with the new weights."""
        self._post("/pause_generation", mode=mode)

    def continue_generation(self) -> None:
        """Continue held requests; an engine with released memory keeps holding until it wakes."""
        if not self._away:
            self._post("/continue_generation", torch_empty_cache=False)

    def begin_weight_update(self) -> None:
        """Open an update session; weights can be loaded until ``end_weight_update``.

        First closes a session that a dead trainer left open.
        """
        try:
            self._post("/begin_weight_update")
        except EngineError as error:
            if "already open" not in str(error):
                raise
            self.close_left_session()
            self._post("/begin_weight_update")

    def close_left_session(self) -> None:
        """Close a session that a dead trainer left open, if any."""
        try:
            self._post("/end_weight_update")
        except EngineError as error:
            if "no weight-update session is open" not in str(error):
                raise

    def update_weights_from_distributed(
        self,
        names: list[str],
        dtypes: list[str],
        shapes: list[list[int]],
        group_name: str,
        flush_cache: bool = False,
        weight_version: str | None = None,
        load_format: str | None = None,
    ) -> None:
        """Receive one bucket from rank 0 of the group, which must broadcast while this call is in flight.

        ``flush_cache`` on the last bucket empties the prefix cache at no extra cost; refused while requests run.
        """
        self._post(
            "/update_weights_from_distributed",
            names=names,
            dtypes=dtypes,
            shapes=shapes,
            group_name=group_name,
            flush_cache=flush_cache,
            weight_version=weight_version,
            load_format=load_format,
        )

    def update_weights_from_tensor(
        self,
        serialized: bytes,
        load_format: str | None = None,
        flush_cache: bool = False,
        weight_version: str | None = None,
    ) -> None:
        """Load named tensors, a pickled list of pairs, on every rank of the engine."""
        payload = base64.b64encode(serialized).decode()
        self._post(
            "/update_weights_from_tensor",
            serialized_named_tensors=[payload] * self.num_weight_ranks(),
            load_format=load_format,
            flush_cache=flush_cache,
            weight_version=weight_version,
        )

    def update_weights_from_disk(self, path: str, flush_cache: bool, weight_version: str) -> None:
        """Load the Hugging Face folder ``path``, which the server's machine must see."""
        self._post("/update_weights_from_disk", model_path=path, flush_cache=flush_cache, weight_version=weight_version)

    def load_lora_adapter_from_tensors(
        self, name: str, config: dict[str, Any], serialized: bytes, checksums: dict[str, str] | None
    ) -> None:
        """Load an additional adapter, a pickled dict of tensors under PEFT's names.

        ``checksums``: SHA-256 of each tensor; a server with a mismatch exits.
        """
        payload = base64.b64encode(serialized).decode()
        self._post(
            "/load_lora_adapter_from_tensors",
            lora_name=name,
            config_dict=config,
            serialized_named_tensors=[payload] * self.num_weight_ranks(),
            expected_checksums=checksums,
        )

    def unload_lora_adapter(self, name: str) -> bool:
        """Unload an adapter; return False if requests still use it, True also if it is already gone."""
        try:
            self._post("/unload_lora_adapter", lora_name=name)
        except EngineError as error:
            if IN_USE in str(error):
                return False
            if "does not exist" not in str(error):
                raise
        return True

    def signature(self, people: str) -> str | None:
        """Return what this machine sees in the folder of everybody's adapters; see `slime.weight_sync.people.signature`."""
        return signature(Path(people))

    def lora_adapters(self) -> list[str]:
        """Return the names that the server serves: its model and its loaded adapters."""
        return [str(model["id"]) for model in self._get("/v1/models")["data"]]

    def set_weight_version(self, version: str) -> None:
        """Set the version that the server reports, without changing weights."""
        self._post("/update_weight_version", new_version=version, abort_all_requests=False)

    def end_weight_update(self, weight_version: str | None = None) -> None:
        """Close the session; running and later requests report ``weight_version`` from now on."""
        if weight_version is not None:
            self.set_weight_version(weight_version)
        self._post("/end_weight_update")

    def flush_cache(self) -> None:
        """Empty the prefix cache in 0.4 s; refused while requests run, allowed while ``retract`` pauses them."""
        self._post("/flush_cache")

    def hold_after_failed_update(self) -> None:
        """Close a failed update's session and keep holding requests, because the weights may be mixed.

        The next update continues the requests.
        """
        self.pause_generation("retract")
        self.close_left_session()

    def get_weight_version(self) -> str:
        """Return the version that the server reports for new tokens."""
        return str(self._get("/model_info")["weight_version"])

    # The server's routes

    def abort_all(self) -> None:
        """Abort every request; clients get the text generated so far."""
        self._post("/abort_request", abort_all=True)

    def _get(self, route: str) -> dict[str, Any]:
        return self._checked(route, "GET", None).json()

    def _post(self, route: str, **body: Any) -> None:
        self._checked(route, "POST", body)

    def _checked(self, route: str, method: str, body: dict[str, Any] | None) -> httpx.Response:
        try:
            response = self._client.request(method, self.url() + route, json=body)
        except httpx.TransportError as error:
            raise EngineError(self._explain(f"did not answer {route} ({error!r})")) from error
        if response.status_code != 200:
            raise EngineError(f"{self._spec.name} refused {route} with {response.status_code}: {response.text.strip()}")
        return response
