"""What became of one reply: its turn's state, verdict and sample, without tokens and texts of the conversation.

Guarantees: read-only and cheap, so that a client may ask again until the turn is judged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from openclaw.ledger.database import Database
from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.ledger.records import SampleState, ScoreSource, TurnState, Verdict

QUERY = (
    "SELECT turns.state, COALESCE(turns.reason, samples.reason) AS reason, judge_attempts, verdict,"
    " samples.state AS sample, samples.rollout_id, weight_version FROM turns"
    " LEFT JOIN verdicts ON verdicts.turn_id = turns.id LEFT JOIN samples"
    " ON samples.turn_id = turns.id OR samples.id = turns.segment"
    " LEFT JOIN steps ON steps.rollout_id = samples.rollout_id AND steps.undone_at IS NULL"
    " AND samples.state IN ('leased', 'trained') WHERE turns.id = ? ORDER BY samples.state = 'dropped', samples.id DESC LIMIT 1"
)


@dataclass(frozen=True)
class Outcome:
    """What became of a turn.

    Attributes:
        state: of the turn, see `openclaw.ledger.states`.
        reason: why it gives no sample, or why its sample was dropped; None otherwise.
        score: of the verdict; None without one.
        score_source: who gave the score; None without one.
        hint: the accepted hint, or None.
        judge_attempts: attempts to judge it that failed.
        sample: state of its newest sample that was not dropped, or else of the newest; None without one.
        step: the rollout id of the step that uses the sample, or None.
        weight_version: the weights after that step, once they are live.
    """

    state: TurnState
    reason: str | None
    score: int | None
    score_source: ScoreSource | None
    hint: str | None
    judge_attempts: int
    sample: SampleState | None
    step: int | None
    weight_version: str | None


class OutcomeQueries(Database):
    """The ledger's query for the route that tells a client what became of a reply."""

    def outcome(self, turn_id: str) -> Outcome:
        """Return what became of a turn.

        Raises:
            UnknownRecordError: if the ledger has no such turn.
        """
        found = self.rows(QUERY, (turn_id,))
        if not found:
            raise UnknownRecordError(f"{self.path} holds no turn {turn_id!r}")
        row = found[0]
        verdict = Verdict() if row["verdict"] is None else Verdict.from_dict(json.loads(row["verdict"]))
        return Outcome(
            state=row["state"],
            reason=row["reason"],
            score=verdict.score,
            score_source=None if verdict.score is None else verdict.score_source,
            hint=verdict.hint,
            judge_attempts=row["judge_attempts"],
            sample=row["sample"],
            step=row["rollout_id"],
            weight_version=row["weight_version"],
        )
