"""Feedback in the ledger: a person's opinion on a reply, outside of the conversation.

Guarantees: feedback is always stored. Until a step has used the turn's samples it counts (``applied``) as the turn's next
state, or in addition to it; a turn that was judged before is judged again, and its samples are dropped (`SUPERSEDED`). After
that, a stated opinion counts as a correction (`openclaw.ledger.corrections`), and words alone do not. Repeating feedback is a no-op. A verdict is committed only if it has seen all feedback that counts
(`TurnQueries.record_judged`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from groundwork.chat_messages import Message
from openclaw.ledger.corrections import correct
from openclaw.ledger.exceptions import TransitionError, UnknownRecordError
from openclaw.ledger.opinion import stated_score
from openclaw.ledger.probes import PROBE
from openclaw.ledger.records import Feedback, TurnState
from openclaw.ledger.turns import FIRST_NEXT_STATE, TurnQueries

SUPERSEDED = "superseded"
"""Why a sample was dropped: feedback on its turn, or another next state, arrived before a step used it."""

OTHER_METHOD = "other_method"
"""Why a sample was dropped: the run went on with another method, which judges the turn again."""


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
        if self.redaction is not None and feedback.text is not None:
            feedback = replace(feedback, text=self.redaction.text(feedback.text))
        with self.transaction() as connection:
            row = connection.execute("SELECT state, reason FROM turns WHERE id = ?", (feedback.turn_id,)).fetchone()
            found: Mapping[str, Any] | None = row and dict(row)
            if found is None:
                raise UnknownRecordError(f"{self.path} holds no turn {feedback.turn_id!r}")
            earlier = self.feedback(feedback.turn_id)
            if earlier and _said(earlier[-1]) == _said(feedback):
                return FeedbackReceipt(earlier[-1].applied, True, found["state"], found["reason"])
            if found["state"] == "judged" and self._take_back(connection, feedback.turn_id):
                found = {"state": "pending", "reason": None}
            score, corrected = stated_score(feedback), False
            if found["state"] == "judged" and score is not None:
                choices = self.choices(feedback.turn_id)
                corrected = correct(connection, feedback.turn_id, score, choices, SUPERSEDED, self.clock())
            starts = found["state"] in FIRST_NEXT_STATE
            if starts:
                self._set_next_state(connection, feedback.turn_id, next_state, feedback.created_at, "feedback")
            applied = starts or corrected or found["state"] == "pending"
            columns = {**asdict(feedback), "applied": int(applied)}
            connection.execute(
                f"INSERT INTO feedback ({', '.join(columns)}) VALUES ({', '.join('?' for _ in columns)})",
                tuple(columns.values()),
            )
        if applied:
            return FeedbackReceipt(True, False, "judged" if corrected else "pending", None)
        return FeedbackReceipt(False, False, found["state"], found["reason"])

    def replace_next_state(self, turn_id: str, messages: Sequence[Message], at: float) -> bool:
        """Commit another next state than a turn had; the turn is judged again.

        Args:
            turn_id: the turn.
            messages: the next state.
            at: when it arrived, seconds since the epoch.

        Returns:
            False, with nothing written, if a step has used the turn's samples.

        Raises:
            TransitionError: if the turn has no next state from the conversation, but for example feedback.
            UnknownRecordError: if the ledger does not hold it.
        """
        with self.transaction() as connection:
            row = connection.execute("SELECT state, signal FROM turns WHERE id = ?", (turn_id,)).fetchone()
            if row is None:
                raise UnknownRecordError(f"{self.path} holds no turn {turn_id!r}")
            if row["state"] not in ("pending", "judged") or row["signal"] == "feedback":
                raise TransitionError(f"turns {turn_id}: {row['state']} ({row['signal']}) has no next state to replace")
            if row["state"] == "judged" and not self._take_back(connection, turn_id):
                return False
            columns = self._next_state_columns(messages, at, "next_state")
            self.update_one(connection, "turns", turn_id, **columns, not_before=0.0)
        return True

    def makers(self) -> set[str]:
        """Return the methods that made the ready samples, as far as known."""
        found = self.rows("SELECT DISTINCT made_by FROM samples WHERE state = 'ready' AND made_by IS NOT NULL")
        return {row["made_by"] for row in found}

    def judge_for(self, made_by: str, *, trains_rewards: bool) -> tuple[int, int]:
        """Take back the ready samples of other methods, whose losses need other numbers, and let their turns be judged again.

        Args:
            made_by: the method that trains from now on.
            trains_rewards: whether it learns from rewards; otherwise the samples of episodes are dropped.

        Returns:
            The numbers of turns that are judged again, and of samples that are dropped because their turn cannot be.
        """
        with self.transaction() as connection:
            found = connection.execute(
                "SELECT DISTINCT turn_id FROM samples WHERE state = 'ready' AND episode IS NULL AND made_by <> ?",
                (made_by,),
            ).fetchall()
            again = [row["turn_id"] for row in found if self._take_back(connection, row["turn_id"], OTHER_METHOD)]
            of_others = "made_by <> ?" if trains_rewards else "(made_by <> ? OR episode IS NOT NULL)"
            dropped = connection.execute(
                f"UPDATE samples SET state = 'dropped', reason = ?, rollout_id = NULL WHERE state = 'ready' AND {of_others}",
                (OTHER_METHOD, made_by),
            ).rowcount
        return len(again), dropped

    def _take_back(self, connection: sqlite3.Connection, turn_id: str, why: str = SUPERSEDED) -> bool:
        """Make a judged turn pending again if no step has used its samples; return whether it is."""
        samples = connection.execute(
            "SELECT id, state, rollout_id FROM samples WHERE turn_id = ?", (turn_id,)
        ).fetchall()
        if any(sample["state"] in ("leased", "trained") for sample in samples):
            return False
        # Their verdict no longer counts, and neither a release nor a restored checkpoint brings them back beside new ones.
        gone = {"reason": why, "baseline_role": None, "rollout_id": None}
        for sample in samples:
            if sample["state"] == "ready":
                self.update_one(connection, "samples", sample["id"], state="dropped", **gone)
            elif sample["rollout_id"] is not None:
                self.update_one(connection, "samples", sample["id"], **gone)
        connection.execute("DELETE FROM verdicts WHERE turn_id = ?", (turn_id,))
        (turn,) = connection.execute("SELECT reason FROM turns WHERE id = ?", (turn_id,)).fetchall()
        stays = PROBE if turn["reason"] == PROBE else None
        self.update_one(connection, "turns", turn_id, state="pending", reason=stays)
        return True


def _said(feedback: Feedback) -> tuple[object, ...]:
    return feedback.thumbs, feedback.score, feedback.text
