"""Turns, next states, verdicts and sessions: the half of the ledger that the runtime process writes.

Guarantees: a verdict and its samples are committed together. A turn without a sample has a reason. Judging a turn twice
is refused.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from groundwork.chat_messages import Message
from openclaw.ledger.baseline import compared
from openclaw.ledger.codec import decode_feedback, decode_turn, decode_verdict, encode_sample, encode_turn, pack_floats
from openclaw.ledger.database import Database
from openclaw.ledger.episode_records import OVER
from openclaw.ledger.episodes import turn_reason
from openclaw.ledger.exceptions import FeedbackArrivedError, TransitionError, UnknownRecordError
from openclaw.ledger.opinion import choice_of
from openclaw.ledger.pictures import store_pictures
from openclaw.ledger.records import Feedback, JudgedTurn, PendingTurn, Signal, Turn, Verdict
from openclaw.owners import episode_of, owner_of, root
from slime.utils.types import Sample

NO_NEXT_STATE = "no_next_state"
FIRST_NEXT_STATE = ("waiting", "ended")
"""States of a turn that can get its next state; only feedback makes a judged turn pending again."""
FEEDBACK_OF_TURN = "SELECT * FROM feedback WHERE turn_id = ? ORDER BY id"
KEPT_AT_REOPENING = (
    "SELECT turn_id FROM samples JOIN turns ON turns.id = turn_id JOIN sessions ON sessions.id = session_id"
    " WHERE session_id = ? AND samples.state <> 'dropped' AND samples.created_at < reopened_at"
)
"""Turns of a reopened session that kept their samples; none of a session that was not reopened."""
SESSION_DIGEST_BYTES = 16


def session_digest(session_id: str) -> bytes:
    """Return what stands for a session id after it was forgotten."""
    return blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=SESSION_DIGEST_BYTES).digest()


class TurnQueries(Database):
    """The ledger's queries for the gateway and the judge worker."""

    def record_turn(self, turn: Turn) -> Turn | None:
        """Commit a finished turn: ``waiting``, or ``excluded`` with its reason (given, ``side`` or ``aborted``).

        A turn of an episode is always excluded: its samples are made when the episode gets its reward. This resumes a
        session that had ended.

        Returns:
            The turn with its state and reason; None, with nothing written, if its session was deleted after the
            request arrived.
        """
        turn.validate()
        episode = episode_of(owner_of(turn.session_id))
        turn = turn.redacted(self.redaction)
        with self.transaction() as connection:
            reason = turn.never_trained if turn.reason is None else turn.reason
            if episode is not None:
                reason = turn_reason(connection, episode, turn, OVER)
                if reason is None:
                    return None
            turn = replace(turn, state="waiting" if reason is None else "excluded", reason=reason)
            forgotten = connection.execute(
                "SELECT 1 FROM forgotten_sessions WHERE session = ? AND forgotten_at >= ?",
                (session_digest(turn.session_id), turn.created_at),
            ).fetchone()
            if forgotten is not None:
                return None
            connection.execute(
                "INSERT INTO sessions (id, started_at) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET ended_at = NULL",
                (turn.session_id, turn.created_at),
            )
            self._insert_turn(connection, turn)
        return turn

    def record_next_state(
        self, turn_id: str, messages: Sequence[Message], at: float, signal: Signal = "next_state"
    ) -> None:
        """Commit a turn's next state; the turn becomes pending.

        Args:
            turn_id: the turn.
            messages: the next state.
            at: when it arrived, seconds since the epoch.
            signal: its kind.

        Raises:
            TransitionError: if the turn already has a next state or is excluded.
            UnknownRecordError: if the ledger does not hold it.
        """
        with self.transaction() as connection:
            found = connection.execute("SELECT state FROM turns WHERE id = ?", (turn_id,)).fetchone()
            if found is not None and found["state"] not in FIRST_NEXT_STATE:
                raise TransitionError(f"turns {turn_id}: {found['state']} -> pending is not allowed")
            self._set_next_state(connection, turn_id, messages, at, signal)

    def feedback(self, turn_id: str) -> list[Feedback]:
        """Return all feedback on a turn, oldest first."""
        return [decode_feedback(row) for row in self.rows(FEEDBACK_OF_TURN, (turn_id,))]

    def end_session(self, session_id: str, at: float) -> None:
        """End a session; its waiting turns are not trained unless the session resumes."""
        with self.transaction() as connection:
            connection.execute("UPDATE sessions SET ended_at = ? WHERE id = ?", (at, session_id))
            connection.execute(
                "UPDATE turns SET state = 'ended', reason = COALESCE(reason, ?) WHERE session_id = ? AND state = 'waiting'",
                (NO_NEXT_STATE, session_id),
            )

    def turn(self, turn_id: str) -> Turn:
        """Return one turn.

        Raises:
            UnknownRecordError: when the ledger does not hold it.
        """
        return decode_turn(self.turn_row(turn_id))

    def turn_count(self, session_id: str) -> int:
        """Return the session's number of turns, which is the index of the next one."""
        return self.rows("SELECT COUNT(*) AS n FROM turns WHERE session_id = ?", (session_id,))[0]["n"]

    def gave_sample_before(self, turn: Turn) -> bool:
        """Return whether the same reply to the same conversation already gave a sample in the turn's session, or is a probe.

        A sample in quarantine counts, because it may be released.
        """
        found = self.rows(
            "SELECT 1 FROM turns LEFT JOIN samples ON samples.turn_id = turns.id WHERE conversation = ? AND session_id = ?"
            " AND turns.id <> ? AND (samples.state <> 'dropped' OR samples.reason = 'quarantine'"
            " OR turns.state = 'judged' AND turns.reason = 'probe') LIMIT 1",
            (turn.conversation, turn.session_id, turn.id),
        )
        return bool(found)

    def pending_turns(
        self, limit: int, exclude: Collection[str] = (), session_wait: float | None = None
    ) -> list[PendingTurn]:
        """Return up to ``limit`` turns that are due for judging, oldest first, except those in ``exclude``.

        With ``session_wait`` a turn is due once its session has ended, or that many seconds after its next state.
        """
        now = self.clock()
        found = self.rows(
            "SELECT * FROM turns WHERE state = 'pending' AND not_before <= ? AND (? IS NULL OR next_state_at <= ?"
            " OR EXISTS (SELECT 1 FROM sessions WHERE id = turns.session_id AND ended_at IS NOT NULL))"
            " ORDER BY number LIMIT ?",
            (now, session_wait, now - (session_wait or 0.0), limit + len(exclude)),
        )
        fresh = [row for row in found if row["id"] not in exclude]
        return [self._to_judge(row) for row in fresh[:limit]]

    def answered_turns(self, session_id: str, limit: int) -> list[PendingTurn]:
        """Return the last ``limit`` turns of a session that have a next state and can be judged, oldest first."""
        found = self.rows(
            "SELECT * FROM turns WHERE session_id = ? AND state IN ('pending', 'judged') ORDER BY number DESC LIMIT ?",
            (session_id, limit),
        )
        return [self._to_judge(row) for row in reversed(found)]

    def _to_judge(self, row: sqlite3.Row) -> PendingTurn:
        turn_id = row["id"]
        return PendingTurn(
            decode_turn(row),
            row["judge_attempts"],
            tuple(self.feedback(turn_id)),
            self.choices(turn_id),
            self.kept_verdict(turn_id),
        )

    def kept_verdict(self, turn_id: str) -> Verdict | None:
        """Return the verdict that a turn's log had and that counts here, without the teacher's numbers; else None."""
        found = self.rows("SELECT verdict FROM logs WHERE turn_id = ? AND verdict IS NOT NULL", (turn_id,))
        return Verdict.from_dict(json.loads(found[0]["verdict"])) if found else None

    def choices(self, turn_id: str) -> int:
        """Return how many choices the request of a turn asked for: its ``n``.

        The gateway records the last choice first, so the highest number is there before any choice can be judged.
        """
        request, number = choice_of(turn_id)
        found = self.rows("SELECT id FROM turns WHERE id > ? AND id < ?", (f"{request}.", f"{request}/"))
        others = [choice_of(row["id"]) for row in found]
        return 1 + max((k for each, k in others if each == request), default=number)

    def postpone(self, turn_id: str, error: str, not_before: float) -> None:
        """Postpone a pending turn that could not be judged, and count the attempt.

        Raises:
            UnknownRecordError: if it is not pending.
        """
        with self.transaction() as connection:
            changed = connection.execute(
                "UPDATE turns SET judge_attempts = judge_attempts + 1, judge_error = ?, not_before = ?"
                " WHERE id = ? AND state = 'pending'",
                (error, not_before, turn_id),
            ).rowcount
            if changed == 0:
                raise UnknownRecordError(f"no pending turn {turn_id!r} in {self.path}")

    def retry_pending(self) -> None:
        """Make every postponed turn due now; counts of attempts stay."""
        with self.transaction() as connection:
            connection.execute(
                "UPDATE turns SET not_before = 0 WHERE state = 'pending' AND not_before > ?", (self.clock(),)
            )

    def record_judged(
        self,
        turn_id: str,
        verdict: Verdict,
        samples: Sequence[Sample],
        reason: str | None,
        feedback_seen: int | None = None,
        next_state_seen: Sequence[Message] | None = None,
        made_by: str | None = None,
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

        Raises:
            FeedbackArrivedError: if there is more feedback, or another next state; nothing is written, and the turn must be
                judged again.
            ValueError: if there is neither a sample nor a reason, or both.
            TransitionError: if the turn was judged before.
        """
        if bool(samples) == (reason is not None):
            raise ValueError(f"turn {turn_id}: a judged turn gives samples or a reason, got {len(samples)}, {reason!r}")
        with self.transaction() as connection:
            if feedback_seen is not None and feedback_seen != len(self.feedback(turn_id)):
                raise FeedbackArrivedError(f"turn {turn_id}: feedback arrived while it was judged")
            row = connection.execute("SELECT next_state, session_id FROM turns WHERE id = ?", (turn_id,)).fetchone()
            following: list[Message] | None = json.loads(row["next_state"] or "null") if row else None
            if row is not None and next_state_seen is not None and following != list(next_state_seen):
                raise FeedbackArrivedError(f"turn {turn_id}: another next state arrived while it was judged")
            self.update_one(connection, "turns", turn_id, state="judged", reason=reason, judge_error=None)
            connection.execute(
                "INSERT INTO verdicts (turn_id, verdict, teacher_log_probs, judged_at) VALUES (?, ?, ?, ?)",
                (turn_id, json.dumps(verdict.to_dict()), pack_floats(verdict.teacher_log_probs), self.clock()),
            )
            if samples and row is not None:
                owner = root(owner_of(row["session_id"]))
                for sample, counted in compared(connection, list(samples), verdict, following or [], owner):
                    self._insert_sample(connection, turn_id, sample, {**counted, "made_by": made_by})

    def finished_sessions(self, limit: int) -> list[str]:
        """Return sessions that have ended, have no turn to judge and are not closed yet."""
        found = self.rows(
            "SELECT id FROM sessions WHERE ended_at IS NOT NULL AND closed_at IS NULL AND NOT EXISTS"
            " (SELECT 1 FROM turns WHERE session_id = sessions.id AND state IN ('waiting', 'unscored', 'pending'))"
            " ORDER BY ended_at LIMIT ?",
            (limit,),
        )
        return [row["id"] for row in found]

    def judged_turns(self, session_id: str) -> list[JudgedTurn]:
        """Return a session's judged turns in order, with verdicts; turns with ``reason`` None gave a sample."""
        found = self.rows(
            "SELECT * FROM turns JOIN verdicts ON verdicts.turn_id = turns.id WHERE session_id = ? ORDER BY number",
            (session_id,),
        )
        return [JudgedTurn(decode_turn(row), decode_verdict(row)) for row in found]

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
        with self.transaction() as connection:
            kept = {row["turn_id"] for row in connection.execute(KEPT_AT_REOPENING, (session_id,))}
            closed = connection.execute(
                "UPDATE sessions SET closed_at = ?, reopened_at = NULL WHERE id = ? AND closed_at IS NULL AND ended_at IS NOT NULL AND NOT EXISTS"
                " (SELECT 1 FROM turns WHERE session_id = sessions.id AND state IN ('waiting', 'unscored', 'pending'))",
                (at, session_id),
            ).rowcount
            if closed == 0:
                return False
            for turn_id, sample in [each for each in samples if each[0] not in kept]:
                self.update_one(connection, "turns", turn_id, reason=None)
                self._insert_sample(connection, turn_id, sample, {"made_by": made_by})
        return True

    def _insert_turn(self, connection: sqlite3.Connection, turn: Turn) -> None:
        self._insert(connection, "turns", encode_turn(turn))
        store_pictures(connection, turn.id, turn.pictures)

    def _insert(self, connection: sqlite3.Connection, table: str, columns: dict[str, Any]) -> None:
        marks = ", ".join("?" for _ in columns)
        connection.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", tuple(columns.values()))

    def _set_next_state(
        self, connection: sqlite3.Connection, turn_id: str, messages: Sequence[Message], at: float, signal: Signal
    ) -> None:
        columns = self._next_state_columns(messages, at, signal)
        self.update_one(connection, "turns", turn_id, state="pending", reason=None, **columns)

    def _next_state_columns(self, messages: Sequence[Message], at: float, signal: Signal) -> dict[str, Any]:
        if self.redaction is not None:
            messages = self.redaction.messages(messages)
        return {"next_state": json.dumps(list(messages)), "next_state_at": at, "signal": signal}

    def _insert_sample(
        self, connection: sqlite3.Connection, turn_id: str, sample: Sample, own: Mapping[str, object]
    ) -> None:
        columns = {"turn_id": turn_id, **encode_sample(sample), "state": "ready", "created_at": self.clock()}
        self._insert(connection, "samples", {**columns, **own})
