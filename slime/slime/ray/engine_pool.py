"""All engines of a run, as the rollout manager owns them: started, watched, restarted, asleep, or one apart with a candidate.

Guarantees: the next health check (``--rollout-health-check-interval``) restarts a dead or hung engine, unless
``--no-use-fault-tolerance``; `EnginePool.recover` counts it until the driver has noticed. An engine that is apart
(``--canary-engine``) is in no router's list while it has the candidate, unless all others are dead, because a router without
engines refuses requests. It is back in the list once all engines have the same weights, however that comes about.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import httpx
import ray
from ray.exceptions import RayActorError

from slime.args import Arguments
from slime.arguments.placement import ENGINE_ROLES, Placement, stage_of
from slime.exceptions import EngineNodeLostError
from slime.ray.engine_group import EngineGroup
from slime.weight_sync.remote_engine import EngineCalls, EngineLife, RemoteEngine, lives_of

logger = logging.getLogger(__name__)

HOLD_SECONDS = 30.0
MEMORY_SECONDS = 180.0
"""Time limit for an engine to release its memory or take it back."""
DRAIN_SECONDS = 30.0
"""For requests that run on the engine when it is set apart. Those that run longer go on with the candidate, and their tokens say so."""
_POLL_SECONDS = 0.05
_CALL_SECONDS = 5.0


class EnginePool:
    """Owns the groups of both roles. Thread-safe: each call of the manager may run in its own thread."""

    def __init__(self, args: Arguments, groups: Sequence[EngineGroup]) -> None:
        self._args = args
        self._groups = groups
        self._lock = threading.Lock()
        self._revived: list[int] = []
        self._get_weights: list[int] = []
        self._apart: EngineLife | None = None
        self._asleep = self._changing = False
        self._closing = threading.Event()

    def watch(self) -> None:
        """Restart dead engines from now on, in a thread."""
        if self._args.use_fault_tolerance:
            threading.Thread(target=self._watch, name="engine-monitor", daemon=True).start()

    def start(self, placement: Placement) -> None:
        """Start the engines, those that share a GPU one after another, and write their addresses into ``args``."""
        stages = {group.role: stage_of(placement, ENGINE_ROLES[group.role]) for group in self._groups}
        for stage in sorted(set(stages.values())):
            self._start_together([group for group in self._groups if stages[group.role] == stage])

    def _start_together(self, groups: Sequence[EngineGroup]) -> None:
        """Start the engines of ``groups`` together and wait for all of them."""
        starts = [(group, group.start()) for group in groups]
        for group, references in starts:
            address = group.finish_start(ray.get(references))
            prefix = "sglang" if group.role == "policy" else "prm"
            setattr(self._args, f"{prefix}_router_ip", address.host)
            setattr(self._args, f"{prefix}_router_port", address.port)
            logger.info("%s engines serve at http://%s:%d", group.role, address.host, address.port)

    def _watch(self) -> None:
        interval = self._args.rollout_health_check_interval
        while not self._closing.wait(interval):
            try:
                self.revive()
            except Exception:  # the monitor survives a failed restart and tries again
                logger.exception("an engine could not be restarted; trying again in %.0f s", interval)

    def revive(self) -> None:
        """Restart dead engines, unless the trainer has their GPUs or the run ends."""
        with self._lock:
            if self._closing.is_set() or not self._args.use_fault_tolerance:
                return
            for group in self._groups:
                if self._asleep and group.role == "policy":
                    continue  # the trainer has the GPUs; dead engines restart once the engines have them again
                revived = group.revive()
                if group.role == "policy":
                    self._revived += revived
                    self._get_weights = [index for index in self._get_weights if index not in revived]

    def recover(self) -> int:
        """Restart dead engines, and return how many policy engines were restarted since the last call.

        Restarted engines serve the start weights, so the trainer must reconnect to all engines and push its weights.
        None counts before it is awake.
        """
        self.revive()
        with self._lock:
            if self._asleep:
                return 0  # a push would find no memory for the weights
            revived, self._revived = self._revived, []
            self._get_weights += revived
        return len(revived)

    def weights_arrived(self) -> bool | None:
        """Recovered engines have current weights; let the router send them requests again.

        All engines have the same now, so the trial of one apart is over. Return whether it had died itself; None without one.
        """
        restarted, self._get_weights = self._get_weights, []
        apart, self._apart = self._apart, None
        for group in self._groups:
            if group.role == "policy":
                group.answers([*restarted, *([apart.position] if apart else [])])
        return None if apart is None else apart.position in restarted

    def handles(self) -> list[RemoteEngine]:
        """Return the handles of the policy engines, by index."""
        return next((list(group.handles) for group in self._groups if group.role == "policy"), [])

    def hold(self, only_last: bool = False) -> None:
        """Hold the policy engines' requests after an update whose trainer died; end an engine that does not answer.

        With ``only_last`` the update went to the last engine alone, and the others go on.
        """
        handles = self.handles()[-1:] if only_last else self.handles()
        for position in EngineCalls.to_all(handles, RemoteEngine.hold_after_failed_update).unanswered(HOLD_SECONDS):
            EngineCalls.to_all([handles[position]], RemoteEngine.kill).unanswered(HOLD_SECONDS)

    def sleep(self) -> None:
        """Make the policy engines release their memory, and restart none until they wake.

        An engine that fails to do so is ended, which also frees its memory.
        """
        with self._lock:
            self._asleep = True
            self._change_memory(lambda engines: EngineCalls.to_all(engines, RemoteEngine.sleep))

    def wake(self, parts: tuple[str, ...]) -> None:
        """Restore ``parts`` of the policy engines' memory, and restart engines that died or do not wake."""
        with self._lock:
            self._asleep = False
            self._change_memory(lambda engines: EngineCalls.to_all(engines, RemoteEngine.wake, parts))
        self.revive()

    def end(self) -> None:
        """Kill the policy engines immediately, for a run that is about to end."""
        self._closing.set()
        EngineCalls.to_all(self.handles(), RemoteEngine.kill).unanswered(HOLD_SECONDS)

    def _change_memory(self, send: Callable[[list[RemoteEngine]], EngineCalls[None]]) -> None:
        handles = self.handles()
        self._changing = True
        calls = send(handles)
        lost = calls.unanswered(MEMORY_SECONDS)
        self._changing = False
        if lost and not self._args.use_fault_tolerance:
            calls.values()
        for position in lost:
            logger.error("policy engine %d did not %s; ending it", position, calls.method)
            EngineCalls.to_all([handles[position]], RemoteEngine.kill).unanswered(HOLD_SECONDS)

    def addresses(self) -> dict[str, str]:
        """Return the URL of each role."""
        known = [(group.role, group.address) for group in self._groups]
        return {role: f"http://{where.host}:{where.port}" for role, where in known if where is not None}

    def close(self) -> None:
        """Restart no engine any more; end those that are falling asleep or waking, for which `stop` would wait."""
        self._closing.set()
        if self._changing:
            self.end()

    def stop(self) -> None:
        """Stop the engines."""
        with self._lock:
            for group in self._groups:
                group.stop()

    # One engine first

    def set_apart(self) -> EngineLife | None:
        """Take the last engine out of the router, let it finish its requests, and return it if it may get a candidate now.

        It may not while no other engine answers, if it died, or if the engines got weights meanwhile.
        """
        group = self._policy()
        last = len(group.handles) - 1
        if not group.set_apart(last):
            group.answers([last])
            return None
        try:
            [apart] = lives_of({last: group.handles[last]})
        except (RayActorError, EngineNodeLostError):
            return None  # it died; `revive` restarts it
        self._apart = apart
        if self._args.update_weight_mode != "adapter":  # there a request keeps the adapter that it started with
            self._drain(apart)
        return apart if self._apart is apart else None

    def _drain(self, apart: EngineLife) -> None:
        """Wait until the engine runs nothing, for ``DRAIN_SECONDS`` at most."""
        deadline = time.monotonic() + DRAIN_SECONDS
        with httpx.Client(timeout=_CALL_SECONDS, trust_env=False) as client:
            while self._apart is apart and not is_idle(client, apart.url):
                if time.monotonic() > deadline:
                    logger.info("%s still has requests; they go on with the candidate", apart.url)
                    return
                time.sleep(_POLL_SECONDS)

    def rejoin(self) -> None:
        """Let the router send requests to the engine again, because what it has may serve."""
        apart, self._apart = self._apart, None
        self._policy().answers([apart.position] if apart else [])

    def _policy(self) -> EngineGroup:
        return next(group for group in self._groups if group.role == "policy")


def is_idle(client: httpx.Client, url: str) -> bool:
    """Return whether an engine runs and holds no request; also if it is down."""
    try:
        loads = client.get(f"{url}/v1/loads?include=core").raise_for_status().json()["loads"]
    except httpx.HTTPError:
        return True
    return all(not load["num_running_reqs"] and not load["num_waiting_reqs"] for load in loads)
