"""The engines of one role: one Ray actor per engine and machine, the address in front of them, and what their router knows.

Guarantees: :meth:`EngineGroup.revive` restarts a dead engine on its port, even if its actor died too, and again if it
dies while it starts; meanwhile the other engines get its requests. ``stop`` returns once every engine process has ended.
A dead engine, or one that holds its requests until it has the trainer's weights, gets no requests from the router while another
engine answers. If none answers, the holding engines get the requests and hold them, because a router without engines
would refuse requests. A failed call to the router is logged and retried at the next check. `EnginePool` owns the group.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import httpx
import ray
from ray import ObjectRef
from ray.exceptions import RayActorError, RayError

from groundwork.exceptions import ConfigError
from groundwork.private_files import private_folder
from slime.args import Arguments, required
from slime.arguments.placement import EngineSpec, Role
from slime.backends.sglang_utils.engine_process import EngineProcess
from slime.backends.sglang_utils.external import ExternalEngine, external_url
from slime.backends.sglang_utils.router import (
    Address,
    check_router,
    requested_port,
    serve_behind_one_address,
    workers_of,
)
from slime.backends.vllm_utils.engine import engine_type
from slime.exceptions import EngineError, EngineNodeLostError
from slime.ray.placement import ENGINE_GPU_SHARE, ReservedPlacement
from slime.ray.restarts import first_line
from slime.weight_sync.people import people_folder
from slime.weight_sync.remote_engine import EngineCalls, RemoteEngine, RemoteProcess, RemoteServer

logger = logging.getLogger(__name__)

_CALL_SECONDS = 5.0
_JOIN_SECONDS = 10.0
_POLL_SECONDS = 0.02
LOOPBACK = "127.0.0.1"
# Calls on one engine overlap: health checks run during an update.
_ACTOR_THREADS = 8
_STOP_TIMEOUT_SECONDS = 30.0
RESTART_ATTEMPTS = 3
ROLES: tuple[Role, ...] = ("policy", "prm")


class RouterWorkers:
    """Owns the router's list of engines, named by index. Thread-safe."""

    def __init__(self, router: str, engines: Sequence[str]) -> None:
        """``router`` and ``engines`` are URLs; initially the router has all engines."""
        self._engines = list(engines)
        self._out: set[int] = set()
        self._due: set[int] = set()
        self._lock = threading.Lock()
        self._client = httpx.Client(base_url=router, timeout=_CALL_SECONDS, trust_env=False)

    def lost(self, dead: Collection[int]) -> None:
        """Stop sending requests to ``dead`` engines, unless no other engine would be left."""
        with self._lock:
            self._due -= set(dead)
            others = set(range(len(self._engines))) - self._out - set(dead)
            if others:
                self._remove(set(dead) - self._out)
            else:
                self._due |= self._out - set(dead)
            self._add_due()

    def apart(self, engine: int) -> bool:
        """Stop sending requests to an engine that answers; return False if the router still does, because no other engine answers."""
        self.lost([engine])
        with self._lock:
            return engine in self._out - self._due

    def answers(self, engines: Collection[int]) -> None:
        """Send requests again to ``engines``, which now have current weights."""
        with self._lock:
            self._due |= self._out & set(engines)
            self._add_due()

    def _remove(self, engines: set[int]) -> None:
        for index in engines:
            try:
                worker = workers_of(self._client).get(self._engines[index])
                if worker is not None:
                    self._client.delete(f"/workers/{worker['id']}").raise_for_status()
                self._out.add(index)
            except httpx.HTTPError as error:
                logger.warning("the router could not remove the dead engine %s: %r", self._engines[index], error)

    def _add_due(self) -> None:
        for index in sorted(self._due):
            try:
                self._add(self._engines[index])
            except (httpx.HTTPError, TimeoutError) as error:
                logger.warning("the router did not add %s; trying again: %r", self._engines[index], error)
                continue
            self._due.discard(index)
            self._out.discard(index)

    def _add(self, url: str) -> None:
        self._client.post("/workers", json={"url": url}).raise_for_status()
        deadline = time.monotonic() + _JOIN_SECONDS
        while url not in workers_of(self._client):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the engine is not in the router's list after {_JOIN_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)


def by_machine(args: Arguments, reserved: ReservedPlacement, spec: EngineSpec) -> list[tuple[int, EngineSpec]]:
    """Return an engine's part on each of its machines, ordered by address.

    Args:
        args: arguments of the run.
        reserved: the run's GPUs.
        spec: the engine, with GPU numbers over the whole cluster.

    Returns:
        Per machine: its first GPU in the cluster's numbering, and a spec with the machine's own GPU numbers.

    Raises:
        ConfigError: the engine spans machines unevenly, or although one could hold it.
    """
    places = groupby(map(int, spec.gpu_ids), key=lambda gpu: reserved.bundles[gpu].node_id)
    parts = [list(gpus) for _, gpus in places]
    if len(parts) > 1 and spec.num_gpus <= args.num_gpus_per_node:
        raise ConfigError(
            f"{spec.name} would span {len(parts)} machines, although one of --num-gpus-per-node {args.num_gpus_per_node} can hold it; "
            "change the GPUs of the roles so that each engine is on one machine"
        )
    counts = [len(part) for part in parts]
    if len(set(counts)) > 1:
        raise ConfigError(
            f"{spec.name} would have {', '.join(map(str, counts))} GPUs on its machines, but an engine that spans machines needs the "
            "same number on each: change the GPUs of the roles"
        )
    # Listen on the machine's address only if there are other machines.
    several = args.num_nodes > 1
    results = []
    for rank, part in enumerate(parts):
        bundles = [reserved.bundles[gpu] for gpu in part]
        host = bundles[0].node_ip if several else LOOPBACK
        own = tuple(bundle.gpu_id for bundle in bundles)
        results.append((part[0], replace(spec, gpu_ids=own, host=host, nodes=len(parts), node_rank=rank)))
    return results


class EngineGroup:
    """Owns the actors of a role; not thread-safe, except for reading ``handles``."""

    _untold: frozenset[int] = frozenset()
    """Restarted engines that :meth:`revive` has not returned yet."""

    def __init__(self, args: Arguments, reserved: ReservedPlacement, role: Role) -> None:
        self._args = args
        self._reserved = reserved
        self.role: Role = role
        self.specs = self._describe()
        self._ports = [0] * len(self.specs)
        port = requested_port(args, role)
        if not check_router(args.router, len(self.specs)) and port:
            self._ports = [port] * len(self.specs)
        self.handles: list[RemoteEngine] = []
        self._others: dict[int, list[RemoteProcess]] = {}
        self.address: Address | None = None
        self._workers: RouterWorkers | None = None

    def _describe(self) -> list[EngineSpec]:
        return self._reserved.placement.engines(self.role)

    def start(self) -> list[ObjectRef[str]]:
        """Create the actors and return references to their starts, for :meth:`finish_start`."""
        if self.role == "policy" and self._args.adapter_per_person:
            private_folder(
                people_folder(self._args.run_dir)
            )  # an engine that does not see it is on a machine without the run's folder
        self.handles = [self._create(index) for index in range(len(self.specs))]
        return [handle.start() for handle in self.handles]

    def finish_start(self, urls: list[str]) -> Address:
        """Record the engines' URLs, start a router if they need one, and return the address to call."""
        self._ports = [int(url.rpartition(":")[2]) for url in urls]
        self.address = address = serve_behind_one_address(self._args, self.role, urls)
        if address.router is not None:
            self._workers = RouterWorkers(f"http://{address.host}:{address.port}", urls)
        return address

    def _create(self, index: int) -> RemoteEngine:
        first, *others = by_machine(self._args, self._reserved, self.specs[index])
        self._others[index] = [
            RemoteProcess(self._actor(EngineProcess, gpu).remote(self._args, spec)) for gpu, spec in others
        ]
        gpu, spec = first
        actor = self._actor(engine_type(self._args), gpu)
        return RemoteEngine(actor.remote(self._args, spec, self._ports[index], self._others[index]))

    def _actor(self, kind: type, gpu: int) -> Any:
        return ray.remote(kind).options(max_concurrency=_ACTOR_THREADS, **self._reserved.options(gpu, ENGINE_GPU_SHARE))

    def revive(self) -> list[int]:
        """Restart dead engines, wait for them, and return their indices.

        A restarted policy engine has the run's start weights. It holds its requests until the trainer's push ends with
        ``continue_generation``; the router uses it again after :meth:`answers`. With an adapter per person it has all that
        it needs, and serves at once.

        Raises:
            EngineError: an engine died again in each of ``RESTART_ATTEMPTS`` restarts. The next call returns the others.
        """
        for attempt in range(1, RESTART_ATTEMPTS + 1):
            try:
                return self._revive()
            except RayError as error:
                line = first_line(getattr(error, "cause", None) or error)
                if attempt == RESTART_ATTEMPTS:
                    raise EngineError(
                        f"a {self.role} engine died again in each of {attempt} restarts; mend the cause, then continue the "
                        f"run with --resume. The last one: {line}"
                    ) from error
                logger.exception(
                    "an engine died again while it restarted (attempt %d); restarting it once more", attempt
                )
        raise AssertionError("the last attempt returns or raises")

    def _revive(self) -> list[int]:
        """Restart each dead engine once; raise the first failure after all others were waited for."""
        hold = self.role == "policy" and not self._args.debug_rollout_only and not self._args.adapter_per_person
        dead = self._dead()
        if self._workers is not None:
            self._workers.lost(dead)
        pending = {index: self.handles[index].restart_if_dead(hold) for index in dead}
        failures = []
        for index, reference in pending.items():
            try:
                if self._restarted(index, reference, hold):
                    self._untold |= {index}
            except RayError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        revived = sorted(self._untold)
        if hold:
            ray.get([self.handles[index].pause_generation("retract") for index in revived])
        self._untold = frozenset()
        self.answers([index for index in sorted({*dead, *revived}) if not hold or index not in revived])
        return revived

    def _restarted(self, index: int, reference: ObjectRef[bool], hold: bool) -> bool:
        try:
            return ray.get(reference)
        except (RayActorError, EngineNodeLostError) as error:
            logger.warning("an actor of %s is gone; recreating it (%s)", self.specs[index].name, error)
            self._discard(index)
            self.handles[index] = self._create(index)
            ray.get(self.handles[index].start(hold))
            return True

    def _dead(self) -> list[int]:
        looks = {index: handle.is_dead() for index, handle in enumerate(self.handles)}
        dead = []
        for index, look in looks.items():
            try:
                if ray.get(look):
                    dead.append(index)
            except (RayActorError, EngineNodeLostError):
                dead.append(index)
        return dead

    def answers(self, engines: Collection[int]) -> None:
        """Let the router send requests again to ``engines``, given by index."""
        if self._workers is not None:
            self._workers.answers(engines)

    def set_apart(self, engine: int) -> bool:
        """Let the router send an engine no requests until :meth:`answers`; return whether it complies."""
        return self._workers is not None and self._workers.apart(engine)

    def _discard(self, index: int) -> None:
        """End what is left of an engine, so that its port and GPUs are free."""
        actors: list[RemoteServer] = [self.handles[index], *self._others.pop(index, [])]
        EngineCalls.to_all(actors, RemoteServer.kill).unanswered(_STOP_TIMEOUT_SECONDS)
        for handle in actors:
            ray.kill(handle.actor)

    def stop(self) -> None:
        """Stop router and engines; kill actors that do not answer, together with their processes."""
        if self.address is not None and self.address.router is not None:
            self.address.router.stop()
        for index in EngineCalls.to_all(self.handles, RemoteEngine.stop).unanswered(_STOP_TIMEOUT_SECONDS):
            logger.warning("%s did not stop cleanly and was killed", self.specs[index].name)
            EngineCalls.to_all(self._others.get(index, ()), RemoteProcess.kill).unanswered(_STOP_TIMEOUT_SECONDS)
        for handle in (*self.handles, *itertools.chain.from_iterable(self._others.values())):
            ray.kill(handle.actor)
        self.handles, self._others = [], {}


class ExternalEngineGroup(EngineGroup):
    """Policy engines at ``--rollout-external-engine-addrs``, which get weights and are otherwise left alone."""

    def _describe(self) -> list[EngineSpec]:
        size = self._args.rollout_num_gpus_per_engine
        return [EngineSpec(self.role, index, size) for index in range(len(self._addresses()))]

    def _addresses(self) -> list[str]:
        return required("--rollout-external-engine-addrs", self._args.rollout_external_engine_addrs)

    def finish_start(self, urls: list[str]) -> Address:
        """Start a router if the engines need one, and return the address to call."""
        self.address = serve_behind_one_address(self._args, self.role, urls)
        return self.address

    def _create(self, index: int) -> RemoteEngine:
        address = external_url(self._addresses()[index])
        remote = ray.remote(ExternalEngine).options(max_concurrency=_ACTOR_THREADS, num_cpus=0)
        return RemoteEngine(remote.remote(self._args, self.specs[index], address))

    def revive(self) -> list[int]:
        """Return nothing: the owner of external engines restarts them."""
        return []


def engine_groups(args: Arguments, reserved: ReservedPlacement) -> list[EngineGroup]:
    """Return the engine groups of a run; none while saved rollouts are replayed."""
    if args.load_debug_rollout_data:
        return []
    groups = [EngineGroup(args, reserved, role) for role in ROLES if reserved.placement.engines(role)]
    if args.rollout_external_engine_addrs:
        groups.insert(0, ExternalEngineGroup(args, reserved, "policy"))
    return groups
