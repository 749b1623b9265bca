"""Users talk to one model in turn, and both measures of the paper are taken.

Guarantees: while sessions are counted, they are held one after the other, and each begins after the run has learned from all
before it. Then conversations run in parallel, until the last score is due; never so many that two updates pass between
two looks, unless the run holds weights back. Scores are side turns, so nothing measured is trained.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from measure import heldout_items, measure
from student import Student

from lab.personal.counting import sessions_to_follow
from lab.personal.sizes import Sizes

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from simulated_users.user import User


class Learner(Protocol):
    """What `Talk` needs to know of the run (`lab.personal.trainer.Trainer`)."""

    batch: int

    @property
    def updates(self) -> int:
        """Return the number of live updates."""
        ...

    @property
    def ready(self) -> int:
        """Return the number of samples that wait for a batch."""
        ...

    async def settle(self) -> None:
        """Return when the run has learned from everything that was said."""
        ...


@dataclass
class Speaker:
    """A user and its conversations."""

    user: User
    student: Student
    counted: int = 0
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def liked(self) -> list[bool]:
        """Return whether the first replies of the counted sessions were liked, in order."""
        return [self.student.first_replies[number] for number in range(self.counted)]

    @property
    def sessions(self) -> int | None:
        """Return the sessions until the rule is followed; None if it is not yet."""
        return sessions_to_follow(self.liked)


class Talk:
    """The talking of one run; owns the speakers' counts."""

    def __init__(
        self,
        client: AsyncOpenAI,
        model: str,
        speakers: Sequence[Speaker],
        learner: Learner | None,
        sizes: Sizes,
        tell: Callable[[str], None],
    ) -> None:
        """Create the talk.

        Args:
            client: of the server.
            model: model name in requests.
            speakers: the users, in the order in which they talk.
            learner: the run that learns; None if nothing is trained.
            sizes: of the run.
            tell: shows progress.
        """
        self._client, self._model, self._speakers = client, model, speakers
        self._learner, self._sizes, self._tell = learner, sizes, tell
        self._due = list(sizes.score_after) if learner else []
        self.seconds: dict[str, float] = {}

    async def hold(self) -> None:
        """Score, count sessions, and go on until the last score.

        Raises:
            Refused: a request of a user was refused.
            MeasureError: one of a score was.
            RunFailed: the run ended or stands still.
        """
        started = time.monotonic()
        await self._score("0")
        self.seconds["scores"] = time.monotonic() - started
        await self._timed("counted_sessions", self._count() if self._learner else self._count_without_learning())
        if self._learner:
            await self._timed("more_sessions", self._go_on(self._learner))

    async def _timed(self, name: str, work: Any) -> None:
        started, scores = time.monotonic(), self.seconds["scores"]
        await work
        self.seconds[name] = time.monotonic() - started - (self.seconds["scores"] - scores)

    async def _count(self) -> None:
        assert self._learner is not None
        for number in range(self._sizes.most_sessions):
            for speaker in self._speakers:
                await self._look()
                await speaker.student.session(number)
                speaker.counted += 1
            if (number + 1) % 5 == 0:
                self._tell(f"session {number + 1}: {self._learner.updates} updates, {self._progress()}")
            if all(speaker.sessions is not None for speaker in self._speakers):
                break
        self._tell(f"counted: {self._progress()}")

    async def _count_without_learning(self) -> None:
        """Hold all sessions, several at a time: their order means nothing to a model that does not change."""
        slots = asyncio.Semaphore(self._sizes.parallel)

        async def one(student: Student, number: int) -> None:
            async with slots:
                await student.session(number)

        for speaker in self._speakers:
            await asyncio.gather(*(one(speaker.student, number) for number in range(self._sizes.most_sessions)))
            speaker.counted = self._sizes.most_sessions
        self._tell(f"counted: {self._progress()}")

    async def _go_on(self, learner: Learner) -> None:
        number, held = max(speaker.counted for speaker in self._speakers), 0
        while True:
            await self._look()
            if not self._due or held >= self._sizes.more_sessions:
                return
            group = self._group_size(learner)
            speakers = [self._speakers[(held + each) % len(self._speakers)] for each in range(group)]
            # A session's number is new to each user.
            await asyncio.gather(*(one.student.session(number + held + at) for at, one in enumerate(speakers)))
            held += group

    def _group_size(self, learner: Learner) -> int:
        """Return how many sessions at a time cannot fill two batches."""
        samples = max(speaker.user.turns - 1 for speaker in self._speakers)
        room = (2 * learner.batch - 1 - learner.ready) // samples
        return max(1, min(self._sizes.parallel, room, self._sizes.more_sessions))

    async def _look(self) -> None:
        """Wait for the run, and score if a score is due."""
        if self._learner is None:
            return
        await self._learner.settle()
        while self._due and self._learner.updates >= self._due[0]:
            started = time.monotonic()
            await self._score(str(self._due.pop(0)))
            self.seconds["scores"] += time.monotonic() - started

    async def _score(self, after: str) -> None:
        updates = self._learner.updates if self._learner else 0
        items = heldout_items(self._sizes.heldout)
        for speaker in self._speakers:
            found = await measure(self._client, self._model, items, user=speaker.user)
            speaker.scores[after] = {
                "updates": updates,
                "problems": len(found.replies),
                "liked": sum(reply.good for reply in found.replies),
                "right": sum(reply.right for reply in found.replies),
                "degenerate": sum(reply.degenerate for reply in found.replies),
            }
            self._tell(f"score after {updates} updates, {speaker.user.name}: {found.rule_rate:.2f}")

    def _progress(self) -> str:
        return ", ".join(
            f"{speaker.user.name} {speaker.sessions or f'not in {speaker.counted}'}" for speaker in self._speakers
        )
