"""One run of an agent program on a task: lease, episode, program, verdict, reward.

Guarantees: a lease is taken before the episode is created, so no episode waits in a queue. Only a verdict with a score is
rewarded; whatever else happens, the episode ends with ``infra_error`` or is deleted. A run that is cancelled gives its lease
back, which ends the program, and deletes its episode unless the reward is known to the gateway.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from agentrl.client import episode
from agentrl.exceptions import AgentError, InvalidError
from agentrl.harness.gateway import AwayError, Closed, Created, EpisodeGateway, RefusedError, Status
from agentrl.protocol import MAX_SECONDS, Ending, LeaseService, Verdict
from agentrl.rollout.play import Mode, outcome
from agentrl.rollout.settings import Settings
from groundwork.exceptions import ConfigError

logger = logging.getLogger(__name__)
T = TypeVar("T")
LIMITS = Settings()
"""Those of the agent loop by default: seconds of a reset, of an evaluation, and in the pool's queue."""
STEP_MARGIN_S = 60.0
"""Seconds of a step beyond those of the program: to start and end it."""
TTL_MARGIN_S = 300.0
MAX_RUN_SECONDS = MAX_SECONDS - STEP_MARGIN_S
LEAVE_S = 15.0
"""Seconds that a cancelled run takes for its last requests to the gateway."""


@dataclass(frozen=True, kw_only=True)
class Agent:
    """The program, and how it is run and rewarded.

    Attributes:
        harness: name of the program at the pool.
        model: name that it sends.
        timeout_s: most seconds of a run, or None for what each task says.
        reward: how a score becomes a reward, see `agentrl.rollout.play`.
    """

    harness: str
    model: str
    timeout_s: float | None
    reward: Mode


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A member of a group.

    Attributes:
        task: of the pool.
        group: name at the gateway.
        group_size: members.
        waves: how many runs one after another the group may take, from which its episodes' time to live follows.
        metadata: for the episode.
        places: of the group, one for each reward; a run with a verdict waits for one, and has it once it is rewarded.
    """

    task: str
    group: str
    group_size: int
    waves: int
    metadata: Mapping[str, object]
    places: asyncio.Semaphore


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What became of a run.

    Attributes:
        episode: id at the gateway, None if none was created.
        status: of the verdict, or ``infra_error``.
        score: of the verdict.
        reward: that the gateway has; None: the run is lost.
        turns: replies, None if the run is lost.
        ending: why the run ended: the program was done, its time was over, or the run is lost.
        seconds: from the request for a lease on.
        problem: why the run is lost.
    """

    episode: str | None
    status: str
    score: float | None = None
    reward: float | None = None
    turns: int | None = None
    ending: Ending = Ending.LOST
    seconds: float
    problem: str = ""


class _Lost(Exception):
    """The run gives no reward; says why."""


@dataclass
class _Progress:
    """How far a run has come."""

    created: Created | None = None
    over: bool = False
    """Whether the gateway knows how the episode ended."""
    ending: Ending = Ending.LOST


class AgentRuns:
    """Runs a program; stateless between runs."""

    def __init__(
        self, service: LeaseService, gateway: EpisodeGateway, agent: Agent, *, leave_s: float = LEAVE_S
    ) -> None:
        self._service, self._gateway, self._agent, self._leave_s = service, gateway, agent, leave_s

    async def run(self, seat: Seat) -> Ended:
        """Run the program once.

        Raises:
            AwayError: the gateway has gone.
            ConfigError: pool or gateway refuse what every run asks for; says what to change.
        """
        began, so_far = time.monotonic(), _Progress()
        try:
            ended = await self._run(seat, so_far, began)
        except (asyncio.CancelledError, ConfigError):
            await self._uncut(self._withdraw(so_far))
            raise
        return ended

    async def _run(self, seat: Seat, so_far: _Progress, began: float) -> Ended:
        try:
            verdict = await self._verdict(seat, so_far)
            reward = self._reward_of(verdict)
            closed = await self._reward(seat, so_far, verdict.status, reward)
        except (AgentError, RefusedError, _Lost) as error:
            problem = _refusal(error)
            await self._uncut(self._close_lost(so_far))
            created = so_far.created.id if so_far.created else None
            seconds = time.monotonic() - began
            return Ended(episode=created, status="infra_error", seconds=seconds, problem=problem)
        return Ended(
            episode=closed.id,
            status=verdict.status,
            score=verdict.score,
            reward=reward,
            turns=closed.counts.turns,
            ending=so_far.ending,
            seconds=time.monotonic() - began,
        )

    async def _verdict(self, seat: Seat, so_far: _Progress) -> Verdict:
        """Return the verdict on what the program did; the lease is given back, so the program has ended."""
        async with episode(self._service, seat.task, wait_s=LIMITS.wait_seconds) as lent:
            task_seconds = (await lent.reset(timeout_s=LIMITS.step_seconds)).data.get("timeout_s")
            limits = [item for item in (task_seconds, self._agent.timeout_s) if isinstance(item, (int, float))]
            timeout_s = min([*limits, MAX_RUN_SECONDS])
            created = await self._uncut(self._create(seat, key_seconds(seat.waves, timeout_s), so_far))
            asked = {"harness": self._agent.harness, "api_key": created.api_key, "model": self._agent.model}
            result = await lent.step(
                {"run_agent": {**asked, "timeout_s": timeout_s}}, timeout_s=timeout_s + STEP_MARGIN_S
            )
            so_far.ending = Ending.PROGRAM_SECONDS if result.truncated else Ending.DONE
            return await lent.evaluate(timeout_s=LIMITS.evaluate_seconds)

    async def _create(self, seat: Seat, ttl_s: float, so_far: _Progress) -> Created:
        made = await self._gateway.create(seat.task, seat.group, seat.group_size, ttl_s, seat.metadata)
        so_far.created = made
        return made

    def _reward_of(self, verdict: Verdict) -> float:
        """Return the reward of a verdict.

        Raises:
            _Lost: it has no score.
            ConfigError: its score is not a reward.
        """
        if verdict.score is None:
            raise _Lost(f"the verdict is {verdict.status} without a score: {verdict.detail or 'no detail'}")
        try:
            reward = outcome(verdict, self._agent.reward)
        except ConfigError as error:
            raise ConfigError(f"the score is {verdict.score:g}, not from 0 to 1; use --reward binary") from error
        if not -1 <= reward <= 1:
            raise ConfigError(f"the score is {reward:g}, and a reward is from -1 to 1; use --reward binary")
        return reward

    async def _reward(self, seat: Seat, so_far: _Progress, status: Status, reward: float) -> Closed:
        await seat.places.acquire()
        try:
            return await self._uncut(self._close(so_far, status, reward))
        except RefusedError:
            seat.places.release()
            raise

    async def _close(self, so_far: _Progress, status: Status, reward: float | None) -> Closed:
        assert so_far.created is not None
        closed = await self._gateway.reward(so_far.created.id, status, reward)
        so_far.over = True
        return closed

    async def _close_lost(self, so_far: _Progress) -> None:
        """End the episode of a lost run, if it has one; delete it if its replies do not end."""
        if so_far.created is None or so_far.over:
            return
        try:
            await self._close(so_far, "infra_error", None)
        except RefusedError as error:
            logger.warning("%s is deleted: %s", so_far.created.id, error)
            await self._gateway.forget(so_far.created.id)
            so_far.over = True

    async def _withdraw(self, so_far: _Progress) -> None:
        """Delete the episode of a run that ends early; one that cannot be deleted now expires by itself."""
        if so_far.created is None or so_far.over:
            return
        try:
            async with asyncio.timeout(self._leave_s):
                await self._gateway.forget(so_far.created.id)
        except (TimeoutError, AwayError, RefusedError, ConfigError) as error:
            reason = str(error) or f"no answer within {self._leave_s:g} s"
            logger.warning("%s was not deleted (%s); it expires by itself", so_far.created.id, reason)

    async def _uncut(self, call: Coroutine[Any, Any, T]) -> T:
        """Await requests that must not be cut off half way: if the run is cancelled, they get `LEAVE_S` to end."""
        task = asyncio.create_task(call)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task}, timeout=self._leave_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise


def key_seconds(waves: int, timeout_s: float) -> float:
    """Return how long the key of an episode lives whose group takes ``waves`` runs of ``timeout_s`` one after another."""
    around = LIMITS.wait_seconds + LIMITS.step_seconds + LIMITS.evaluate_seconds
    return waves * (around + timeout_s) + TTL_MARGIN_S


def _refusal(error: Exception) -> str:
    """Return why a run is lost.

    Raises:
        ConfigError: the pool refuses what every run asks for.
    """
    if isinstance(error, InvalidError):
        raise ConfigError(f"the pool refuses to run the agent: {error}") from error
    return str(error)
