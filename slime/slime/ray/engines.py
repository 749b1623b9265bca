"""The engines of one role: one Ray actor per engine and machine, and the address in front of them.

Guarantees: :meth:`EngineGroup.revive` restarts a dead engine on its port, even if its actor died too, and again if it
dies while it starts; meanwhile the other engines get its requests. ``stop`` returns once every engine process has ended.
The rollout manager owns the group.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import RayActorError, RayError

from slime.args import Arguments, required
from slime.arguments.placement import EngineSpec, Role
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.backends.sglang_utils.engine_process import EngineProcess
from slime.backends.sglang_utils.external import ExternalEngine, external_url
from slime.backends.sglang_utils.router import Address, check_router, requested_port, serve_behind_one_address
from slime.exceptions import EngineError, EngineNodeLostError
from slime.ray.engine_machines import by_machine
from slime.ray.placement import ENGINE_GPU_SHARE, ReservedPlacement
from slime.ray.restarts import first_line
from slime.ray.router_workers import RouterWorkers
from slime.weight_sync.remote_engine import EngineCalls, RemoteEngine, RemoteProcess, RemoteServer

logger = logging.getLogger(__name__)

# Calls on one engine overlap: health checks run during an update.
_ACTOR_THREADS = 8
_STOP_TIMEOUT_SECONDS = 30.0
RESTART_ATTEMPTS = 3
ROLES: tuple[Role, ...] = ("policy", "prm")


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
        actor = self._actor(SGLangEngine, gpu)
        return RemoteEngine(actor.remote(self._args, spec, self._ports[index], self._others[index]))

    def _actor(self, kind: type, gpu: int) -> Any:
        return ray.remote(kind).options(max_concurrency=_ACTOR_THREADS, **self._reserved.options(gpu, ENGINE_GPU_SHARE))

    def revive(self) -> list[int]:
        """Restart dead engines, wait for them, and return their indices.

        A restarted policy engine has the run's start weights. It holds its requests until the trainer's push ends with
        ``continue_generation``; the router uses it again after :meth:`answers`.

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
        hold = self.role == "policy" and not self._args.debug_rollout_only
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
