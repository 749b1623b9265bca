"""Drives groups of runs: tasks in a fixed order, many runs in parallel, lost runs again.

Guarantees: no group begins while pool or gateway are away, or while more rollouts wait for the trainer than `Plan.most_ready`:
what the policy sampled would be stale before it is trained. A lost run is never rewarded; another one takes its place, at most
`Plan.tries` in all, then the group is given up and the driver goes on. When `drive` is cancelled or fails, every run ends
first, as `agentrl.harness.run` says.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

from agentrl.exceptions import AgentError, InvalidError
from agentrl.harness.gateway import AWAY_S, AwayError, EpisodeGateway
from agentrl.harness.records import FINISHED, Records
from agentrl.harness.run import AgentRuns, Ended, Seat
from agentrl.harness.screen import Screen
from agentrl.service import LeaseService

GIVEN_UP = "given_up"
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to drive.

    Attributes:
        tasks: their ids; one that stands twice is driven twice per epoch.
        group_size: runs of a task whose rewards are compared.
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

    def schedule(self) -> Iterator[tuple[int, str]]:
        """Yield numbers and tasks of groups; each epoch has all tasks, in an order of its own."""
        yield from itertools.islice(enumerate(self._endless()), self.groups)

    def _endless(self) -> Iterator[str]:
        for epoch in itertools.count():
            order = list(self.tasks)
            random.Random(f"{self.seed} {epoch}").shuffle(order)
            yield from order

    @property
    def waves(self) -> int:
        """How many runs one after another a group takes at most."""
        return self.tries * -(-self.group_size // self.parallel)


@dataclass
class _Group:
    """A group under way; its name is new in every process."""

    number: int
    task: str
    name: str = ""
    ended: list[Ended] = field(default_factory=list)
    running: int = 0
    problem: str = ""
    told: bool = False

    def __post_init__(self) -> None:
        self.name = f"{self.task}#{self.number}-{secrets.token_hex(4)}"

    @property
    def shown(self) -> str:
        return f"group {self.number} ({self.task})"


class Driver:
    """Drives one plan, once."""

    def __init__(
        self,
        plan: Plan,
        service: LeaseService,
        gateway: EpisodeGateway,
        runs: AgentRuns,
        records: Records,
        screen: Screen,
        *,
        away_s: float = AWAY_S,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        """``away_s``: how long the pool may be away; ``first_pause_s``: before something is tried again."""
        self._plan, self._service, self._gateway, self._runs = plan, service, gateway, runs
        self._records, self._screen = records, screen
        self._away_s, self._first_pause_s = away_s, first_pause_s
        self._free = asyncio.Semaphore(plan.parallel)

    async def drive(self) -> None:
        """Drive all groups that no earlier process has finished.

        Raises:
            AwayError: pool or gateway have gone.
            ConfigError: they refuse what every run asks for.
            RefusedError: the gateway does not delete an episode.
        """
        finished = self._records.finished()
        try:
            async with asyncio.TaskGroup() as tasks:
                for number, task in self._plan.schedule():
                    if number not in finished:
                        await self._begin(_Group(number, task), tasks)
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None

    async def _begin(self, group: _Group, tasks: asyncio.TaskGroup) -> None:
        """Start the runs of a group, each as soon as there is room for it."""
        for seat in range(self._plan.group_size):
            await self._free.acquire()
            if seat == 0:
                await self._pool_answers()
                await self._queue_is_short()
            if group.problem:
                self._free.release()
                return
            group.running += 1
            tasks.create_task(self._fill(group, seat), name=f"{group.name} {seat}")

    async def _fill(self, group: _Group, seat: int) -> None:
        """Run the program until a run of this member is rewarded, or its tries or the group are over."""
        try:
            for attempt in range(1, self._plan.tries + 1):
                ended = await self._runs.run(self._seat(group, seat, attempt))
                self._keep(group, seat, attempt, ended)
                if ended.reward is not None:
                    group.ended.append(ended)
                    break
                if attempt == self._plan.tries:
                    group.problem = f"{attempt} runs of a member were lost"
                if group.problem:
                    break
                await asyncio.sleep(pause(attempt, self._first_pause_s))
                await self._pool_answers()
                if group.problem:
                    break
        finally:
            group.running -= 1
            self._free.release()
        self._tell(group)

    def _seat(self, group: _Group, seat: int, attempt: int) -> Seat:
        metadata = {**self._plan.metadata, "seat": seat, "attempt": attempt}
        return Seat(
            task=group.task,
            group=group.name,
            group_size=self._plan.group_size,
            waves=self._plan.waves,
            metadata=metadata,
        )

    def _keep(self, group: _Group, seat: int, attempt: int, ended: Ended) -> None:
        place = {"number": group.number, "task": group.task, "group": group.name, "seat": seat, "attempt": attempt}
        self._records.episode({**place, **asdict(ended)})
        again = f", try {attempt}" if attempt > 1 else ""
        self._screen.run(group.shown, f"run {seat + 1} of {self._plan.group_size}{again}", ended)

    def _tell(self, group: _Group) -> None:
        """Say and keep what became of a group, once it is over."""
        rewards = [ended.reward for ended in group.ended if ended.reward is not None]
        scores = [ended.score for ended in group.ended if ended.score is not None]
        line = {"number": group.number, "task": group.task, "group": group.name, "rewards": rewards, "scores": scores}
        if len(rewards) == self._plan.group_size:
            self._records.group({**line, "state": FINISHED})
            self._screen.finished(group.shown, rewards, scores)
        elif group.problem and not group.running and not group.told:
            group.told = True
            self._records.group({**line, "state": GIVEN_UP, "problem": group.problem})
            self._screen.given_up(group.shown, group.problem, len(rewards))

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
                self._screen.say(f"waiting for the pool: {problem}")
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
                self._screen.say(f"waiting for the trainer: {ready} rollouts are ready, {bound}")
            await asyncio.sleep(pause(attempt, self._first_pause_s))


def pause(attempt: int, first_s: float) -> float:
    """Return the seconds before something is tried again after its ``attempt``-th failure."""
    return random.uniform(0.5, 1.0) * min(first_s * 2 ** min(attempt - 1, 16), LONGEST_PAUSE_S)
