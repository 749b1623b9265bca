"""Judging: which turns wait for the judge, their verdicts, and the samples of verdicts and of whole sessions.

Guarantees: a verdict and its samples are committed together. A turn without a sample has a reason. Judging a turn twice
is refused. A verdict is committed only if it has seen all feedback that counts.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import asdict

from groundwork.chat_messages import Message
from openclaw.ledger.codec import decode_turn, decode_verdict, pack_floats
from openclaw.ledger.database import Database, move_samples
from openclaw.ledger.exceptions import FeedbackArrivedError, UnknownRecordError
from openclaw.ledger.feedback import FeedbackLog
from openclaw.ledger.records import (
    OF_SESSION,
    JudgedTurn,
    PendingTurn,
    ReactionReward,
    Verdict,
)
from openclaw.ledger.samples import insert_sample
from openclaw.ledger.turns import Turns
from slime.utils.types import Sample

KEPT_AT_REOPENING = (
    "SELECT turn_id FROM samples JOIN turns ON turns.id = turn_id JOIN sessions ON sessions.id = session_id"
    " WHERE session_id = ? AND samples.state <> 'dropped' AND samples.origin = 'live'"
    " AND samples.created_at < reopened_at"
)
"""Turns of a reopened session that kept their samples; none of a session that was not reopened."""
OTHER_METHOD = "other_method"
"""Why a sample was dropped: the run went on with another method, which judges the turn again."""


class Judging:
    """The queue of the judge worker, and what it commits."""

    def __init__(self, database: Database, turns: Turns, feedback: FeedbackLog) -> None:
        self._database = database
        self._turns = turns
        self._feedback = feedback

    def pending(
        self, limit: int, exclude: Collection[str] = (), session_wait: float | None = None
    ) -> list[PendingTurn]:
        """Return up to ``limit`` turns that are due for judging, oldest first, except those in ``exclude``.

        With ``session_wait`` a turn is due once its session has ended, or that many seconds after its next state.
        """
        now = self._database.clock()
        rows = self._database.rows(
            "SELECT * FROM turns WHERE state = 'pending' AND not_before <= ? AND (? IS NULL OR next_state_at <= ?"
            " OR EXISTS (SELECT 1 FROM sessions WHERE id = turns.session_id AND ended_at IS NOT NULL))"
            " ORDER BY number LIMIT ?",
            (now, session_wait, now - (session_wait or 0.0), limit + len(exclude)),
        )
        fresh = [row for row in rows if row["id"] not in exclude]
        return [self._to_judge(row) for row in fresh[:limit]]

    def answered(self, session_id: str, limit: int) -> list[PendingTurn]:
        """Return the last ``limit`` turns of a session that have a next state and can be judged, oldest first."""
        rows = self._database.rows(
            "SELECT * FROM turns WHERE session_id = ? AND state IN ('pending', 'judged') ORDER BY number DESC LIMIT ?",
            (session_id, limit),
        )
        return [self._to_judge(row) for row in reversed(rows)]

    def _to_judge(self, row: sqlite3.Row) -> PendingTurn:
        turn_id = row["id"]
        return PendingTurn(
            decode_turn(row),
            row["judge_attempts"],
            tuple(self._feedback.of(turn_id)),
            self._turns.choices(turn_id),
            self.kept_verdict(turn_id),
        )

    def kept_verdict(self, turn_id: str) -> Verdict | None:
        """Return the verdict that a turn's log had and that counts here, without the teacher's numbers; else None."""
        rows = self._database.rows("SELECT verdict FROM logs WHERE turn_id = ? AND verdict IS NOT NULL", (turn_id,))
        return Verdict.from_dict(json.loads(rows[0]["verdict"])) if rows else None

    def postpone(self, turn_id: str, error: str, not_before: float) -> None:
        """Postpone a pending turn that could not be judged, and count the attempt.

        Raises:
            UnknownRecordError: if it is not pending.
        """
        with self._database.transaction() as connection:
            changed = connection.execute(
                "UPDATE turns SET judge_attempts = judge_attempts + 1, judge_error = ?, not_before = ?"
                " WHERE id = ? AND state = 'pending'",
                (error, not_before, turn_id),
            ).rowcount
            if changed == 0:
                raise UnknownRecordError(f"no pending turn {turn_id!r} in {self._database.path}")

    def retry(self) -> None:
        """Make every postponed turn due now; counts of attempts stay."""
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE turns SET not_before = 0 WHERE state = 'pending' AND not_before > ?", (self._database.clock(),)
            )

    def record(
        self,
        turn_id: str,
        verdict: Verdict,
        samples: Sequence[Sample],
        reason: str | None,
        feedback_seen: int | None = None,
        next_state_seen: Sequence[Message] | None = None,
        made_by: str | None = None,
        rewards: Sequence[ReactionReward | None] = (),
    ) -> None:
        """Commit a verdict with its samples, or with the reason for having none.

        Args:
            turn_id: the turn.
            verdict: the verdict.
            samples: its samples.
            reason: why there are none.
            feedback_seen: number of feedback statements that the verdict considered; None skips the check.
            next_state_seen: the next state that it considered; None skips the check.
            made_by: the method that made the samples.
            rewards: per sample, what later baselines count of it; none without.

        Raises:
            FeedbackArrivedError: if there is more feedback, or another next state; nothing is written, and the turn must be
                judged again.
            ValueError: if there is neither a sample nor a reason, or both.
            TransitionError: if the turn was judged before.
        """
        if bool(samples) == (reason is not None):
            raise ValueError(f"turn {turn_id}: a judged turn gives samples or a reason, got {len(samples)}, {reason!r}")
        with self._database.transaction() as connection:
            if feedback_seen is not None and feedback_seen != len(self._feedback.of(turn_id)):
                raise FeedbackArrivedError(f"turn {turn_id}: feedback arrived while it was judged")
            row = connection.execute("SELECT next_state FROM turns WHERE id = ?", (turn_id,)).fetchone()
            following: list[Message] | None = json.loads(row["next_state"] or "null") if row else None
            if row is not None and next_state_seen is not None and following != list(next_state_seen):
                raise FeedbackArrivedError(f"turn {turn_id}: another next state arrived while it was judged")
            self._database.update_one(connection, "turns", turn_id, state="judged", reason=reason, judge_error=None)
            connection.execute(
                "INSERT INTO verdicts (turn_id, verdict, teacher_log_probs, judged_at) VALUES (?, ?, ?, ?)",
                (
                    turn_id,
                    json.dumps(verdict.to_dict()),
                    pack_floats(verdict.teacher_log_probs),
                    self._database.clock(),
                ),
            )
            for number, sample in enumerate(samples):
                self._insert_sample(connection, turn_id, sample, made_by, rewards[number] if rewards else None)

    def reaction(self, turn_id: str) -> tuple[str, list[Message]]:
        """Return a turn's session and its next state, empty without one.

        Raises:
            UnknownRecordError: if the ledger does not hold the turn.
        """
        row = self._database.turn_row(turn_id, "session_id, next_state")
        return row["session_id"], json.loads(row["next_state"] or "[]")

    def finished_sessions(self, limit: int) -> list[str]:
        """Return sessions that have ended, have no turn to judge and are not closed yet."""
        rows = self._database.rows(
            "SELECT id FROM sessions WHERE ended_at IS NOT NULL AND closed_at IS NULL AND NOT EXISTS"
            " (SELECT 1 FROM turns WHERE session_id = sessions.id AND state IN ('waiting', 'unscored', 'pending'))"
            " ORDER BY ended_at LIMIT ?",
            (limit,),
        )
        return [row["id"] for row in rows]

    def judged(self, session_id: str) -> list[JudgedTurn]:
        """Return a session's judged turns in order, with verdicts; turns with ``reason`` None gave a sample."""
        rows = self._database.rows(
            "SELECT * FROM turns JOIN verdicts ON verdicts.turn_id = turns.id WHERE session_id = ? ORDER BY number",
            (session_id,),
        )
        return [JudgedTurn(decode_turn(row), decode_verdict(row)) for row in rows]

    def close_session(
        self, session_id: str, samples: Sequence[tuple[str, Sample]], at: float, made_by: str | None = None
    ) -> bool:
        """Commit the samples of a finished session as a whole, once.

        A session that `score_again` reopened keeps the samples that it has, and gives those that it lacks.

        Args:
            session_id: the session.
            samples: pairs of turn id and sample; those turns lose the reason they had.
            at: now.
            made_by: the method that made the samples.

        Returns:
            False, with nothing written, if the session is already closed, has resumed or has turns to judge.
        """
        with self._database.transaction() as connection:
            kept = {row["turn_id"] for row in connection.execute(KEPT_AT_REOPENING, (session_id,))}
            closed = connection.execute(
                "UPDATE sessions SET closed_at = ?, reopened_at = NULL WHERE id = ? AND closed_at IS NULL AND ended_at IS NOT NULL AND NOT EXISTS"
                " (SELECT 1 FROM turns WHERE session_id = sessions.id AND state IN ('waiting', 'unscored', 'pending'))",
                (at, session_id),
            ).rowcount
            if closed == 0:
                return False
            for turn_id, sample in [item for item in samples if item[0] not in kept]:
                self._database.update_one(connection, "turns", turn_id, reason=None)
                sample.metadata[OF_SESSION] = True
                self._insert_sample(connection, turn_id, sample, made_by)
        return True

    def _insert_sample(
        self,
        connection: sqlite3.Connection,
        turn_id: str,
        sample: Sample,
        made_by: str | None,
        reward: ReactionReward | None = None,
    ) -> None:
        counted = {f"baseline_{name}": value for name, value in asdict(reward).items()} if reward else {}
        insert_sample(self._database, connection, turn_id, sample, made_by=made_by, **counted)

    def makers(self) -> set[str]:
        """Return the methods that made the ready samples, as far as known."""
        rows = self._database.rows("SELECT DISTINCT made_by FROM samples WHERE state = 'ready' AND made_by IS NOT NULL")
        return {row["made_by"] for row in rows}

    def judge_for(self, made_by: str, *, trains_rewards: bool) -> tuple[int, int]:
        """Take back the ready samples of other methods, whose losses need other numbers, and let their turns be judged again.

        Args:
            made_by: the method that trains from now on.
            trains_rewards: whether it learns from rewards; otherwise the samples of episodes are dropped.

        Returns:
            The numbers of turns that are judged again, and of samples that are dropped because their turn cannot be.
        """
        with self._database.transaction() as connection:
            rows = connection.execute(
                "SELECT DISTINCT turn_id FROM samples WHERE state = 'ready' AND origin = 'live' AND episode IS NULL"
                " AND made_by <> ?",
                (made_by,),
            ).fetchall()
            again = [row["turn_id"] for row in rows if self._turns.take_back(connection, row["turn_id"], OTHER_METHOD)]
            of_others = "made_by <> ?" if trains_rewards else "(made_by <> ? OR episode IS NOT NULL)"
            dropped = move_samples(connection, "discard", of_others, (made_by,), reason=OTHER_METHOD)
        return len(again), dropped
