"""The rollout manager's part of ``--canary-engine``: the engine that has a candidate before the others (`slime.ray.canary`).

Guarantees: the engine is in no router's list while it has the candidate, unless all others are dead, because a router without
engines refuses requests. It is back in the list once all engines have the same weights, however that comes about.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from functools import partial
from typing import Any

import httpx
import ray
from ray.exceptions import RayActorError

from slime.args import Arguments
from slime.exceptions import EngineNodeLostError
from slime.ray.engines import EngineGroup
from slime.rollout.canary import Canary

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 30.0
"""For requests that run on the engine when it is set apart. Those that run longer go on with the candidate, and their tokens say so."""
_POLL_SECONDS = 0.05
_CALL_SECONDS = 5.0


class CanaryEngine:
    """Methods of the rollout manager's actor; each may run in its own thread."""

    args: Arguments
    _groups: list[EngineGroup]
    _canary: Canary | None
    _apart: int | None = None
    """Index of the engine that the router does not know; None without one."""

    def set_canary_apart(self) -> bool:
        """Take the last engine out of the router and let it finish its requests; return whether it may get the candidate now.

        It may not while no other engine answers, if it died, or if the engines got weights meanwhile.
        """
        group = self._policy_engines()
        last = len(group.handles) - 1
        if not group.set_apart(last):
            group.answers([last])
            return False
        engine = group.handles[last]
        try:
            self._canary = canary = Canary(ray.get(engine.url()), partial(_lives, engine, _starts(engine)))
        except (RayActorError, EngineNodeLostError):
            return False  # it died; `revive` restarts it
        self._apart = last
        if self.args.update_weight_mode != "adapter":  # there a request keeps the adapter that it started with
            self._drain(canary)
        return not canary.ended

    def _drain(self, canary: Canary) -> None:
        """Wait until the engine runs nothing, for ``DRAIN_SECONDS`` at most."""
        deadline = time.monotonic() + DRAIN_SECONDS
        with httpx.Client(timeout=_CALL_SECONDS, trust_env=False) as client:
            while not canary.ended and not _is_idle(client, canary.url):
                if time.monotonic() > deadline:
                    logger.info("%s still has requests; they go on with the candidate", canary.url)
                    return
                time.sleep(_POLL_SECONDS)

    def canary_lost(self, restarted: Collection[int]) -> list[int]:
        """All engines have the same weights; return the engine that the router should know again.

        ``restarted``: engines that restarted before they got them, by index.
        """
        last, self._apart = self._apart, None
        if last is None or self._canary is None:
            return []
        died = last in restarted
        self._canary.end("the engine died" if died else "all engines got the same weights", died=died)
        return [last]

    def canary_is_over(self) -> bool:
        """Return whether the engine has lost the candidate again."""
        return self._apart is None

    def canary_rejoins(self) -> None:
        """Let the router send requests to the engine again, because what it has may serve."""
        self._policy_engines().answers(self.canary_lost(()))

    def _policy_engines(self) -> EngineGroup:
        return next(group for group in self._groups if group.role == "policy")


def _starts(engine: Any) -> int:
    return ray.get(engine.starts())


def _lives(engine: Any, starts: int) -> bool:
    """Return whether an engine's process runs and is the one of so many starts; waits for a restart under way."""
    try:
        return not ray.get(engine.is_dead()) and _starts(engine) == starts
    except (RayActorError, EngineNodeLostError):
        return False


def _is_idle(client: httpx.Client, url: str) -> bool:
    """Return whether an engine runs and holds no request; also if it is down."""
    try:
        loads = client.get(f"{url}/v1/loads?include=core").raise_for_status().json()["loads"]
    except httpx.HTTPError:
        return True
    return all(not load["num_running_reqs"] and not load["num_waiting_reqs"] for load in loads)
