"""The votes on a turn: asked for, cast again without a quorum, and counted; the hint of a session; the loop's metrics.

Guarantees: a majority needs a quorum (`has_quorum`): with fewer valid votes there is no score at all, which is not the
same as 0. A tie and a majority below the threshold give 0.

The hint of a whole session is for methods whose plan has a `openclaw.method.SessionPlan`: the judge is asked about a
session once for all turns that wait for its hint, not once per turn. A failed question is a failure of every turn that
waits for it, and is asked again. A turn that is judged again, because feedback arrived or its teacher was away, asks
again. Hints are forgotten when no turn is being judged.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as PrometheusCounter

from groundwork.chat_messages import Message
from openclaw.judge.answers import longest_hint
from openclaw.judge.interface import Judge, Question
from openclaw.ledger.feedback import judged_messages, opinion
from openclaw.ledger.records import JudgeKind, Turn, Vote
from openclaw.ledger.store import Ledger
from openclaw.method import JudgePlan, SessionPlan


class JudgeMetrics:
    """Registers the judge's metrics in the runtime's registry; owned by the judge worker."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.votes = PrometheusCounter(
            "openclaw_judge_votes",
            "Votes cast, by judge and value, or why it is none",
            ["judge", "value"],
            registry=registry,
        )
        self.recast = PrometheusCounter(
            "openclaw_judge_votes_recast", "Votes cast again because too few were valid", ["judge"], registry=registry
        )
        self.lessons = PrometheusCounter(
            "openclaw_judge_lessons",
            "Complaints in a person's own words, by what became of them: born, proposed, repeated, unlearned, replaced, unwanted, unusable, none, "
            "not_standing, unread, failed, withdrawn",
            ["outcome"],
            registry=registry,
        )
        self.measured_lessons = PrometheusCounter(
            "openclaw_judge_measured_lessons",
            "Lessons that were measured after an update, by what followed: learned, returned, stays; or why they could not be: "
            "few_prompts, no_base, unread, failed",
            ["outcome"],
            registry=registry,
        )
        self.judged = PrometheusCounter(
            "openclaw_judge_turns",
            "Turns judged, by outcome: sample or the reason for none",
            ["outcome"],
            registry=registry,
        )
        self.failures = PrometheusCounter(
            "openclaw_judge_failures", "Turns that could not be judged and stay pending", ["kind"], registry=registry
        )
        self.teacher_failures = PrometheusCounter(
            "openclaw_judge_teacher_failures",
            "Hinted turns without usable teacher logprobs",
            ["kind"],
            registry=registry,
        )
        self.teacher_tokens = PrometheusCounter(
            "openclaw_judge_teacher_tokens",
            "Tokens of replies that a teacher scored: taught, or why it has no number for one: control, unaligned, see teachers.md",
            ["outcome"],
            registry=registry,
        )
        self.teacher_positions = PrometheusCounter(
            "openclaw_judge_teacher_positions",
            "Positions at which the teacher scored the policy's top K: with the whole reply, or by a request of their own",
            ["settled"],
            registry=registry,
        )
        self.hint_overlap = Histogram(
            "openclaw_judge_hint_overlap",
            "Share of the policy's top K among the likeliest tokens of the teacher with the chosen hint",
            buckets=(0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0),
            registry=registry,
        )
        self.session_samples = PrometheusCounter(
            "openclaw_judge_session_samples", "Samples given by finished sessions as a whole", registry=registry
        )
        self.session_failures = PrometheusCounter(
            "openclaw_judge_session_failures",
            "Finished sessions that could not be closed and are tried again, by the error's type",
            ["reason"],
            registry=registry,
        )
        self.agreement = Histogram(
            "openclaw_judge_agreement",
            "Share of the votes that agree with the most frequent one",
            ["judge"],
            buckets=(0.34, 0.5, 0.67, 0.8, 0.99, 1.0),
            registry=registry,
        )
        self.seconds = Histogram("openclaw_judge_seconds", "Seconds to judge a turn", registry=registry)
        self.in_flight = Gauge("openclaw_judge_in_flight", "Turns being judged", registry=registry)


class Counted(Protocol):
    """An answer that counts towards a quorum unless its value is None."""

    @property
    def value(self) -> int | None: ...


def has_quorum(votes: Sequence[Counted], share: float) -> bool:
    """Return whether at least ``share`` of the votes, and at least one, are valid; True if none was asked for."""
    valid = sum(vote.value is not None for vote in votes)
    return not votes or valid >= max(1, math.ceil(share * len(votes)))


def majority(values: Iterable[int | None], threshold: float) -> int:
    """Return the most frequent valid vote if its share reaches ``threshold``, otherwise 0.

    Args:
        values: the votes; None is an invalid vote and does not count.
        threshold: least share of the valid votes, in (0, 1].

    Returns:
        -1, 0 or 1; 0 for a tie, a smaller share or no valid vote.
    """
    counts = Counter(value for value in values if value is not None)
    if not counts:
        return 0
    ranked = counts.most_common(2)
    if len(ranked) == 2 and ranked[0][1] == ranked[1][1]:
        return 0
    value, count = ranked[0]
    return value if count / counts.total() >= threshold else 0


def agreement(values: Sequence[int | None]) -> float:
    """Return the share of the most frequent valid value among all votes; 0 without a valid vote."""
    counts = Counter(value for value in values if value is not None)
    return counts.most_common(1)[0][1] / len(values) if counts else 0.0


CASTINGS = 3


class Voting:
    """Casts the votes of a plan."""

    def __init__(self, judge: Judge, plan: JudgePlan, quorum: float, metrics: JudgeMetrics) -> None:
        """``quorum``: the least share of valid votes among those asked for."""
        self._judge = judge
        self._plan = plan
        self._quorum = quorum
        self._metrics = metrics

    async def scores(self, question: Question, *, stated: bool) -> list[Vote]:
        """Return the votes on the score; none if a person has ``stated`` it."""
        return await self._cast("prm", question, 0 if stated else self._plan.prm_votes)

    async def hints(self, question: Question) -> list[Vote]:
        """Return the votes on the hint; none without a next state."""
        return await self._cast("hint", question, self._plan.hint_votes if question.next_state else 0)

    def enough(self, votes: list[Vote]) -> bool:
        """Return whether the valid votes are a quorum."""
        return has_quorum(votes, self._quorum)

    async def _cast(self, judge: JudgeKind, question: Question, count: int) -> list[Vote]:
        """Return a judge's votes; without a quorum the invalid ones are cast again, `CASTINGS` times in all."""
        votes = await self._judge.votes(judge, question, count)
        for _ in range(CASTINGS - 1):
            if self.enough(votes):
                break
            valid = [vote for vote in votes if vote.value is not None]
            self._metrics.recast.labels(judge=judge).inc(count - len(valid))
            votes = valid + await self._judge.votes(judge, question, count - len(valid))
        for vote in votes:
            self._metrics.votes.labels(judge=vote.judge, value=vote.invalid or str(vote.value)).inc()
        if votes:
            self._metrics.agreement.labels(judge=judge).observe(agreement([vote.value for vote in votes]))
        return votes


MAX_TURNS = 64
"""A longer session is judged by its last turns."""

Ask = Callable[[Question], Awaitable[list[Vote]]]


@dataclass(frozen=True)
class _Asked:
    """A question under way or answered, and the turns that still need its answer."""

    votes: asyncio.Task[list[Vote]]
    waiting: set[str]


class SessionHints:
    """Asks the hint judge about sessions; owns the answers until they are used."""

    def __init__(self, ledger: Ledger, plan: SessionPlan, ask: Ask) -> None:
        """Create it; ``ask`` casts the hint judge's votes on a question."""
        self._ledger = ledger
        self._plan = plan
        self._ask = ask
        self._asked: dict[str, _Asked] = {}
        self._reading = asyncio.Lock()

    async def votes(self, turn: Turn) -> list[Vote]:
        """Return the votes on the session of ``turn``; none if the session gives the judge nothing to read.

        They are those of the question that gave the hint, or of the last one.

        Raises:
            JudgeError: if the judge failed.
        """
        asked = await self._of(turn)
        try:
            votes = await asyncio.shield(asked.votes)
        except Exception:
            if self._asked.get(turn.session_id) is asked:
                del self._asked[turn.session_id]
            raise
        asked.waiting.discard(turn.id)
        return votes

    def forget(self) -> None:
        """Forget every answer, and give up the questions under way."""
        for asked in self._asked.values():
            asked.votes.cancel()
        self._asked.clear()

    async def _of(self, turn: Turn) -> _Asked:
        async with self._reading:
            asked = self._asked.get(turn.session_id)
            if asked is None or turn.id not in asked.waiting:
                found = await asyncio.to_thread(self._ledger.judging.answered, turn.session_id, MAX_TURNS)
                heard = [
                    replace(each.turn, next_state=judged_messages(each.turn, opinion(each.feedback))) for each in found
                ]
                heard = [each for each in heard if each.next_state and not each.never_trained]
                asked = _Asked(
                    asyncio.create_task(self._votes(heard)),
                    {turn.id, *(each.turn.id for each in found if each.turn.state == "pending")},
                )
                self._asked[turn.session_id] = asked
        return asked

    async def _votes(self, turns: Sequence[Turn]) -> list[Vote]:
        votes: list[Vote] = []
        for prompt in self._plan.questions(turns) if turns else ():
            votes = await self._ask(_question(turns[-1], prompt))
            if longest_hint(votes):
                break
        return votes


def _question(last: Turn, prompt: Sequence[Message]) -> Question:
    """Return a question with the method's prompt; a judge that reads no prompt gets the last turn, whose request holds the session."""
    return replace(Question.about(last.messages, last.response_message, last.next_state or []), prompt=prompt)
