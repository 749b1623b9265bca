"""Transfers turns between ledgers: lists changed turns as JSON values and merges them on the other side.

Guarantees: merging a turn again is a no-op, so a reader may request it repeatedly. Ids and log-probabilities arrive
unchanged. Verdicts, samples and steps are not transferred: the receiver judges. Pictures are not either, so a turn that saw
one is not trained there (`NO_PICTURE`).
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from groundwork.chat_messages import pictures_in
from openclaw.ledger.codec import decode_feedback, decode_turn
from openclaw.ledger.database import BUSY_TIMEOUT_SECONDS
from openclaw.ledger.feedback import FeedbackQueries
from openclaw.ledger.opinion import as_next_state
from openclaw.ledger.pictures import NO_PICTURE
from openclaw.ledger.records import Feedback, TopK, Turn, VersionSpan
from openclaw.ledger.turns import FEEDBACK_OF_TURN
from openclaw.owners import prefixes

_CHANGED = (
    "MAX(turns.finished_at, COALESCE(turns.next_state_at, 0), COALESCE(sessions.ended_at, 0),"
    " COALESCE((SELECT MAX(created_at) FROM feedback WHERE feedback.turn_id = turns.id), 0))"
)


@dataclass(frozen=True)
class ChangedTurn:
    """A changed turn, for another ledger.

    Attributes:
        turn: as it is.
        feedback: on the turn, oldest first.
        session_ended_at: when its session ended, or None while it is open.
        changed_at: time of the last change of any of this, seconds since the epoch.
        number: of the turn in its ledger.
    """

    turn: Turn
    feedback: tuple[Feedback, ...]
    session_ended_at: float | None
    changed_at: float
    number: int

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        values = asdict(self)
        del values["turn"]["conversation"], values["turn"]["pictures"]
        return values

    @staticmethod
    def from_dict(values: dict[str, Any]) -> ChangedTurn:
        """Return what `to_dict` described.

        Raises:
            KeyError, TypeError: for anything else.
        """
        turn: dict[str, Any] = {
            **values["turn"],
            "response_topk": None if (topk := values["turn"].get("response_topk")) is None else TopK(**topk),
            "weight_versions": [VersionSpan(**span) for span in values["turn"]["weight_versions"]],
        }
        feedback = tuple(Feedback(**item) for item in values["feedback"])
        return ChangedTurn(Turn(**turn), feedback, values["session_ended_at"], values["changed_at"], values["number"])


def _changed(reader: sqlite3.Connection, row: sqlite3.Row) -> ChangedTurn:
    turn = reader.execute("SELECT * FROM turns WHERE number = ?", (row["number"],)).fetchone()
    feedback = reader.execute(FEEDBACK_OF_TURN, (row["id"],)).fetchall()
    given = tuple(decode_feedback(item) for item in feedback)
    return ChangedTurn(decode_turn(turn), given, row["ended_at"], row["changed_at"], row["number"])


class TransferQueries(FeedbackQueries):
    """The ledger's queries for the rollouts route and a collector."""

    def changed_turns(self, since: float, after: int, limit: int, owner: str | None = None) -> list[ChangedTurn]:
        """Return up to ``limit`` turns changed after ``since``, or at ``since`` with a number above ``after``, oldest first.

        Only those of ``owner``, which is not `LOCAL`, and its children; of all owners if it is None.
        """
        own, children = ("", "") if owner is None else prefixes(owner)
        # The query reads the whole table; a connection of its own keeps it from blocking turns. In one transaction, a
        # session that is deleted meanwhile is returned complete.
        with self._named_errors(), closing(sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_SECONDS)) as reader:
            reader.row_factory = sqlite3.Row
            reader.execute("BEGIN")
            found = reader.execute(
                f"SELECT turns.number, turns.id, sessions.ended_at, {_CHANGED} AS changed_at FROM turns"
                " JOIN sessions ON sessions.id = turns.session_id"
                f" WHERE ({_CHANGED} > ? OR ({_CHANGED} = ? AND turns.number > ?))"
                " AND (substr(sessions.id, 1, ?) = ? OR substr(sessions.id, 1, ?) = ?)"
                " ORDER BY changed_at, turns.number LIMIT ?",
                (since, since, after, len(own), own, len(children), children, limit),
            ).fetchall()
            return [_changed(reader, row) for row in found]

    def take_in(self, changed: ChangedTurn) -> bool:
        """Merge a turn of another ledger; return whether anything was new.

        A turn of a session that was deleted here is skipped.
        """
        turn = changed.turn
        with self.transaction() as connection:
            known = connection.execute("SELECT state FROM turns WHERE id = ?", (turn.id,)).fetchone()
            if known is None:
                reason = turn.reason if turn.state == "excluded" else NO_PICTURE if pictures_in(turn.messages) else None
                fresh = replace(turn, state="waiting", reason=reason, next_state=None, next_state_at=None, signal=None)
                if self.record_turn(fresh) is None:
                    return False
            state = connection.execute("SELECT state FROM turns WHERE id = ?", (turn.id,)).fetchone()["state"]
            news = known is None
            if state in ("waiting", "ended") and turn.next_state and turn.signal != "feedback":
                self.record_next_state(turn.id, turn.next_state, turn.next_state_at or 0.0, turn.signal or "next_state")
                news = True
            for item in changed.feedback[len(self.feedback(turn.id)) :]:
                self.record_feedback(item, as_next_state(item))
                news = True
            if changed.session_ended_at is not None:
                self.end_session(turn.session_id, changed.session_ended_at)
        return news
