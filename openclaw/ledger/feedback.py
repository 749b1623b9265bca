"""Feedback in the ledger: what a person said about a reply outside of the conversation.

Guarantees: feedback is kept in any case; it counts (``applied``) when its turn was not judged yet, either as the turn's
next state or beside the one it has; saying the same again changes nothing. No verdict is committed that has not seen all
feedback that counts (`TurnQueries.record_judged`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.ledger.records import Feedback, Message, TurnState
from openclaw.ledger.turns import TurnQueries


@dataclass(frozen=True)
class FeedbackReceipt:
    """What became of feedback.

    Attributes:
        applied: whether it counts for the verdict of its turn.
        repeated: whether the same was said before; nothing was written then.
        state: of the turn, afterwards.
        reason: why the turn gives no sample, if that is known.
    """

    applied: bool
    repeated: bool
    state: TurnState
    reason: str | None


class FeedbackQueries(TurnQueries):
    """What the feedback route asks of the ledger."""

    def record_feedback(self, feedback: Feedback, next_state: Sequence[Message]) -> FeedbackReceipt:
        """Commit feedback; a turn without a next state gets it as one, and waits for the judge from now on.

        Args:
            feedback: what was said.
            next_state: the same as messages for the judge.

        Raises:
            UnknownRecordError: when the ledger does not hold the turn.
        """
        if self.redaction is not None:
            feedback = self.redaction.feedback(feedback)
        with self.transaction() as connection:
            found = connection.execute("SELECT state, reason FROM turns WHERE id = ?", (feedback.turn_id,)).fetchone()
            if found is None:
                raise UnknownRecordError(f"{self.path} holds no turn {feedback.turn_id!r}")
            earlier = self.feedback(feedback.turn_id)
            if earlier and _said(earlier[-1]) == _said(feedback):
                return FeedbackReceipt(earlier[-1].applied, True, found["state"], found["reason"])
            starts = found["state"] in ("waiting", "ended")
            if starts:
                self._set_next_state(connection, feedback.turn_id, next_state, feedback.created_at, "feedback")
            applied = starts or found["state"] == "pending"
            columns = {**asdict(feedback), "applied": int(applied)}
            connection.execute(
                f"INSERT INTO feedback ({', '.join(columns)}) VALUES ({', '.join('?' for _ in columns)})",
                tuple(columns.values()),
            )
        if applied:
            return FeedbackReceipt(True, False, "pending", None)
        return FeedbackReceipt(False, False, found["state"], found["reason"])


def _said(feedback: Feedback) -> tuple[object, ...]:
    return feedback.thumbs, feedback.score, feedback.text
