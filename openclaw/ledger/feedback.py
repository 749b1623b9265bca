"""Feedback in the ledger: a person's opinion on a reply, outside of the conversation.

Guarantees: feedback is always stored. It counts (``applied``) if its turn is not judged yet: as the turn's next state, or
in addition to it. Repeating feedback is a no-op. A verdict is committed only if it has seen all feedback that counts
(`TurnQueries.record_judged`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.ledger.records import Feedback, Message, TurnState
from openclaw.ledger.turns import TurnQueries


@dataclass(frozen=True)
class FeedbackReceipt:
    """The outcome of feedback.

    Attributes:
        applied: whether it counts for the verdict of its turn.
        repeated: whether the same feedback was there before; then nothing was written.
        state: the turn's state afterwards.
        reason: why the turn gives no sample, if known.
    """

    applied: bool
    repeated: bool
    state: TurnState
    reason: str | None


class FeedbackQueries(TurnQueries):
    """The ledger's queries for the feedback route."""

    def record_feedback(self, feedback: Feedback, next_state: Sequence[Message]) -> FeedbackReceipt:
        """Commit feedback; a turn without a next state takes it as next state and becomes pending.

        Args:
            feedback: the feedback.
            next_state: the feedback as messages for the judge.

        Raises:
            UnknownRecordError: if the ledger has no such turn.
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
