"""The votes on a turn: asked for, cast again without a quorum, and counted. Owns nothing."""

from __future__ import annotations

from openclaw.judge.interface import Judge, Question
from openclaw.judge.metrics import JudgeMetrics
from openclaw.judge.votes import agreement, has_quorum
from openclaw.ledger.records import JudgeKind, Vote
from openclaw.method import JudgePlan

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
