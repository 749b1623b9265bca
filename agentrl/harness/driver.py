"""Drives groups of runs: tasks in a fixed order, many runs in parallel, lost runs again.

Guarantees: no group begins while pool or gateway are away, or while more rollouts wait for the trainer than `Plan.most_ready`:
what the policy sampled would be stale before it is trained. A lost run is never rewarded; another one takes its place, at most
`Plan.tries` in all. A group that lacks more members then than it has spare ones is given up, and the driver goes on. A group has
exactly `Plan.group_size` rewarded members when it is finished: those that came first; spare runs are ended, and never rewarded.
The gateway settles at once what a group has that is given up, that the driver leaves behind, or that a killed one left. When
`drive` is cancelled or fails, every run ends first, as `agentrl.harness.run` says.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

from agentrl.exceptions import AgentError, InvalidError
from agentrl.harness.gateway import AWAY_S, AwayError, EpisodeGateway, GroupClosed, RefusedError
from agentrl.harness.progress import ProgressDisplay
from agentrl.harness.records import BEGUN, FINISHED, GIVEN_UP, Records
from agentrl.harness.run import LEAVE_S, AgentRuns, Ended, Seat
from agentrl.protocol import LeaseService
from groundwork.exceptions import ConfigError

logger = logging.getLogger(__name__)
FIRST_PAUSE_S = 1.0
MAX_PAUSE_SECONDS = 30.0
LEFT = "the driver ended before it"
"""Problem of a group that a driver began and did not end."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to drive.

    Attributes:
        tasks: their ids; one that stands twice is driven twice per epoch.
        group_size: runs of a task whose rewards are compared.
        spare: runs that each group begins besides, so that it does not wait for its slowest ones.
        parallel: most runs at a time.
        groups: of the whole schedule, None without an end.
        tries: runs for each member of a group.
        most_ready: rollouts that may wait for the trainer when a group begins.
        seed: of the order.
        metadata: for every episode.
    """

    tasks: Sequence[str]
    group_size: int
    parallel: int
    groups: int | None
    tries: int
    most_ready: int
    seed: int
    metadata: dict[str, str]
    spare: int = 0

    def schedule(self) -> Iterator[tuple[int, str]]:
        """Yield numbers and tasks of groups; each epoch has all tasks, in an order of its own."""
        yield from itertools.islice(enumerate(self._endless()), self.groups)

    def _endless(self) -> Iterator[str]:
        for epoch in itertools.count():
            order = list(self.tasks)
            random.Random(f"{self.seed} {epoch}").shuffle(order)
            yield from order

    @property
    def members(self) -> int:
        """How many members of a group begin."""
        return self.group_size + self.spare

    @property
    def waves(self) -> int:
        """How many runs one after another a group takes at most."""
        return self.tries * -(-self.members // self.parallel)


@dataclass
class _Group:
    """A group under way; its name is new in every process.

    Attributes:
        places: one for each reward that the group takes.
        ended: its rewarded runs.
        running: of the members that fill a seat.
        given_up: how many members lost all their runs.
        problem: why it is given up, empty if it is not.
        over: whether it is settled at the gateway, or about to be.
    """

    number: int
    task: str
    places: asyncio.Semaphore
    name: str = ""
    ended: list[Ended] = field(default_factory=list[Ended])
    running: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    given_up: int = 0
    problem: str = ""
    over: bool = False

    def __post_init__(self) -> None:
        self.name = f"{self.task}#{self.number}-{secrets.token_hex(4)}"

    @property
    def shown(self) -> str:
        return f"group {self.number} ({self.task})"

    @property
    def line(self) -> dict[str, object]:
        """What the records say of it, but its state."""
        rewards = [ended.reward for ended in self.ended]
        scores = [ended.score for ended in self.ended]
        return {"number": self.number, "task": self.task, "group": self.name, "rewards": rewards, "scores": scores}


class Driver:
    """Drives one plan, once."""

    def __init__(
        self,
        plan: Plan,
        service: LeaseService,
        gateway: EpisodeGateway,
        runs: AgentRuns,
        records: Records,
        display: ProgressDisplay,
        *,
        away_s: float = AWAY_S,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        """``away_s``: how long the pool may be away; ``first_pause_s``: before something is tried again."""
        self._plan, self._service, self._gateway, self._runs = plan, service, gateway, runs
        self._records, self._display = records, display
        self._away_s, self._first_pause_s = away_s, first_pause_s
        self._free = asyncio.Semaphore(plan.parallel)
        self._under_way: dict[str, _Group] = {}

    async def drive(self) -> None:
        """Drive all groups that no earlier process has finished.

        Raises:
            AwayError: pool or gateway have gone.
            ConfigError: they refuse what every run asks for.
            RefusedError: the gateway does not delete an episode, or does not close a group.
        """
        finished = self._records.finished()
        await self._close_left()
        try:
            async with asyncio.TaskGroup() as tasks:
                for number, task in self._plan.schedule():
                    if number not in finished:
                        places = asyncio.Semaphore(self._plan.group_size)
                        await self._begin(_Group(number, task, places), tasks)
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
        finally:
            await self._leave()

    async def _begin(self, group: _Group, tasks: asyncio.TaskGroup) -> None:
        """Start the runs of a group, each as soon as there is room for it."""
        for seat in range(self._plan.members):
            await self._free.acquire()
            if seat == 0:
                await self._pool_answers()
                await self._queue_is_short()
                self._records.group({**group.line, "state": BEGUN})
                self._under_way[group.name] = group
            if group.problem or group.over:
                self._free.release()
                return
            task = tasks.create_task(self._fill(group, seat), name=f"{group.name} {seat}")
            group.running.add(task)
            task.add_done_callback(partial(self._left_seat, group))

    def _left_seat(self, group: _Group, task: asyncio.Task[None]) -> None:
        """Make room for another run; called for a run that was ended before it began, too."""
        group.running.discard(task)
        self._free.release()

    async def _fill(self, group: _Group, seat: int) -> None:
        """Run the program until a run of this member is rewarded, or its tries or the group are over."""
        for attempt in range(1, self._plan.tries + 1):
            ended = await self._runs.run(self._seat(group, seat, attempt))
            self._keep(group, seat, attempt, ended)
            if ended.reward is not None:
                group.ended.append(ended)
                break
            if attempt == self._plan.tries:
                group.given_up += 1
                if group.given_up > self._plan.spare:
                    group.problem = group.problem or f"{attempt} runs of a member were lost"
            if group.problem or attempt == self._plan.tries:
                break
            await asyncio.sleep(pause(attempt, self._first_pause_s))
            await self._pool_answers()
            if group.problem:
                break
        if not group.over:
            await self._settle(group)

    def _seat(self, group: _Group, seat: int, attempt: int) -> Seat:
        metadata = {**self._plan.metadata, "seat": seat, "attempt": attempt}
        return Seat(
            task=group.task,
            group=group.name,
            group_size=self._plan.members,
            waves=self._plan.waves,
            metadata=metadata,
            places=group.places,
        )

    def _keep(self, group: _Group, seat: int, attempt: int, ended: Ended) -> None:
        place = {"number": group.number, "task": group.task, "group": group.name, "seat": seat, "attempt": attempt}
        self._records.episode({**place, **asdict(ended)})
        again = f", try {attempt}" if attempt > 1 else ""
        self._display.run(group.shown, f"run {seat + 1} of {self._plan.members}{again}", ended)

    async def _settle(self, group: _Group) -> None:
        """Settle, say and keep what became of a group, if this member was the last that it waited for."""
        others = {task for task in group.running if task is not asyncio.current_task() and not task.done()}
        if len(group.ended) == self._plan.group_size:
            group.over = True
            await self._end_spare(group, others)
            self._records.group({**group.line, "state": FINISHED})
            self._display.finished(group.shown, *_results(group))
        elif group.problem and not others:
            group.over = True
            await self._gateway.close_group(group.name)
            self._records.group({**group.line, "state": GIVEN_UP, "problem": group.problem})
            self._display.given_up(group.shown, group.problem, len(group.ended))
        if group.over:
            del self._under_way[group.name]

    async def _end_spare(self, group: _Group, others: set[asyncio.Task[None]]) -> None:
        """End the runs that a full group does not need, and have the gateway compare the others."""
        if not self._plan.spare:
            return
        for other in others:
            other.cancel()
        if others:
            await asyncio.wait(others)
        self._display.spared(group.shown, len(others))
        await self._gateway.close_group(group.name)

    async def _close_left(self) -> None:
        """Close the groups that earlier processes left unfinished; they begin anew, under other names."""
        for line in self._records.left():
            closed = await self._gateway.close_group(line["group"])
            self._records.group({**line, "state": GIVEN_UP, "problem": LEFT})
            if closed is not None:
                self._display.say(f"group {line['number']} ({line['task']}) of an earlier run: {_told(closed)}")

    async def _leave(self) -> None:
        """Close the groups that are under way when the driver ends early; a later process closes what it cannot."""
        try:
            async with asyncio.timeout(LEAVE_S):
                for group in self._under_way.values():
                    closed = await self._gateway.close_group(group.name)
                    self._records.group({**group.line, "state": GIVEN_UP, "problem": LEFT})
                    if closed is not None:
                        self._display.say(f"{group.shown} is left: {_told(closed)}")
        except (TimeoutError, AwayError, RefusedError, ConfigError) as error:
            reason = str(error) or f"no answer within {LEAVE_S:g} s"
            logger.warning(
                "groups were left open at the gateway (%s); the same command with --records closes them", reason
            )

    async def _pool_answers(self) -> None:
        """Wait until the pool grants leases.

        Raises:
            AwayError: it has not for `AWAY_S` seconds.
            InvalidError: it refuses the key.
        """
        clock = asyncio.get_running_loop().time
        latest = clock() + self._away_s
        for attempt in itertools.count(1):
            try:
                if (await self._service.status()).ready:
                    return
                problem = "it grants no leases"
            except InvalidError:
                raise
            except AgentError as error:
                problem = str(error)
            if attempt == 1:
                self._display.say(f"waiting for the pool: {problem}")
            if clock() >= latest:
                raise AwayError(f"the pool has granted no lease for {self._away_s:g} s: {problem}")
            await asyncio.sleep(pause(attempt, self._first_pause_s))

    async def _queue_is_short(self) -> None:
        """Wait until few enough rollouts wait for the trainer."""
        for attempt in itertools.count(1):
            ready = (await self._gateway.overview()).ready
            if ready <= self._plan.most_ready:
                return
            if attempt == 1:
                bound = f"--most-ready is {self._plan.most_ready}"
                self._display.say(f"waiting for the trainer: {ready} rollouts are ready, {bound}")
            await asyncio.sleep(pause(attempt, self._first_pause_s))


def _results(group: _Group) -> tuple[list[float], list[float]]:
    """Return rewards and scores of a group's rewarded runs."""
    rewards = [ended.reward for ended in group.ended if ended.reward is not None]
    return rewards, [ended.score for ended in group.ended if ended.score is not None]


def _told(closed: GroupClosed) -> str:
    """Return what became of a group that was closed."""
    others = "".join(f", {count} {reason}" for reason, count in closed.reasons.items())
    return f"closed, {closed.trained} runs are trained{others}"


def pause(attempt: int, first_s: float) -> float:
    """Return the seconds before something is tried again after its ``attempt``-th failure."""
    return random.uniform(0.5, 1.0) * min(first_s * 2 ** min(attempt - 1, 16), MAX_PAUSE_SECONDS)
