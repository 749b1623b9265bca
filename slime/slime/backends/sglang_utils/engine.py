"""One SGLang engine: its processes, and the calls that the trainer and the manager make on it.

Guarantees: the server keeps its port for the engine's whole life, across crashes and restarts. ``start`` returns once
it serves, or raises with the last lines of its log. ``stop`` or the actor's death leaves nothing behind. An engine that
spans machines starts, ends and dies as a whole. A call that SGLang refuses raises
:class:`~slime.exceptions.EngineError` with SGLang's message. :class:`SGLangEngine` is a plain class;
``slime.ray.engines`` makes a Ray actor of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import httpx

from groundwork.network import find_available_port
from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.backends.sglang_utils.engine_process import EngineProcess
from slime.backends.sglang_utils.memory_calls import MemoryCalls
from slime.backends.sglang_utils.other_nodes import ANSWER_SECONDS, OtherNodes
from slime.backends.sglang_utils.weight_calls import WeightCalls
from slime.exceptions import EngineError, EngineNodeLostError
from slime.weight_sync.remote_engine import RemoteProcess

logger = logging.getLogger(__name__)

START_TIMEOUT_SECONDS = 1800.0
CPU_START_TIMEOUT_SECONDS = 300.0
CALL_TIMEOUT_SECONDS = 600.0
_POLL_SECONDS = 0.1
_HEALTH_SECONDS = 5.0


class SGLangEngine(WeightCalls, MemoryCalls, EngineProcess):
    """Owns one server process. Methods block until the server answers; thread-safe."""

    def __init__(self, args: Arguments, spec: EngineSpec, port: int = 0, others: Sequence[RemoteProcess] = ()) -> None:
        """``others``: the processes on the engine's other machines, in order."""
        super().__init__(args, spec)
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
            self.kill()
            self._port = self._port or find_available_port(host=self._spec.host)
            several = self._spec.nodes > 1
            rendezvous = f"{self._spec.host}:{find_available_port(host=self._spec.host)}" if several else ""
            try:
                self._others.launch(rendezvous)
                self.launch(self._port, rendezvous=rendezvous, hold=hold)
                self._starts += 1
                self._away = set()
                self._wait_until_it_serves()
            except BaseException:
                self.kill()
                raise
            self._started_at, self._silent_since = time.monotonic(), 0.0
            return self.url()

    def _wait_until_it_serves(self) -> None:
        timeout = CPU_START_TIMEOUT_SECONDS if self._cpu else START_TIMEOUT_SECONDS
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if not self.alive():
                raise EngineError(self._explain(f"ended with status {self._statuses()} while it started"))
            if self.health():
                return
            time.sleep(_POLL_SECONDS)
        raise EngineError(self._explain(f"did not serve within {timeout:.0f} s"))

    def _explain(self, problem: str) -> str:
        """Return ``problem`` with the ends of the logs on all machines."""
        return "\n".join(filter(None, (self.explain(problem), self._others.explain())))

    def _statuses(self) -> str:
        """Return the exit status of the process on each machine, None for a running one."""
        return ", ".join(map(str, (self.returncode(), *self._others.returncodes())))

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
        stopped = ", and a signal has stopped a process of it" if self.stopped() else ""
        return f"has failed its health checks for {time.monotonic() - self._silent_since:.0f} s{stopped}"

    def hangs(self) -> bool:
        """Return whether no health check has succeeded for ``--rollout-health-check-timeout`` seconds.

        An engine with a stopped process is not healthy, even if its server still answers. Returns False during the first
        ``--rollout-health-check-first-wait`` seconds after the start.
        """
        if self.health() and not self.stopped():
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
            super().stop()
            others.unanswered(ANSWER_SECONDS)

    def kill(self) -> None:
        """Kill the server with SIGKILL on all machines, like a crash; it can be restarted."""
        with self._lock:
            others = self._others.kill()
            super().kill()
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
        return super().alive() and self._others.alive()

    def has_ended(self) -> bool:
        """Return whether any process of the engine has ended, without calling the server, which may be busy."""
        try:
            return not self.alive()
        except EngineNodeLostError:
            return True

    def hosts(self) -> list[str]:
        """Return the names of the machines (and containers) of the engine's ranks."""
        return super().hosts() + self._others.hosts()

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
            "pid": self._child.pid if self._child else None,
            "starts": self._starts,
            "log_path": str(self._log_path),
        }

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
