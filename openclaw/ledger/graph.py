"""Turns as the sessions look them up: by session or by conversation, without their tokens.

Guarantees: what is read back is enough to go on with a session that memory has forgotten; marks and reads only, a
turn's next state is recorded by `openclaw.ledger.turns`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw.ledger.database import Database
from openclaw.ledger.records import Message, Signal, TurnKind, TurnState

REGENERATED = "regenerated"
_LOOK_BACK = 1000
_COLUMNS = (
    "id, session_id, kind, state, signal, conversation, response_message, next_state,"
    " json_extract(messages, '$[0]') AS first_message"
)


@dataclass(frozen=True)
class TurnNode:
    """A turn without its tokens; ``first_message`` is that of its request."""

    id: str
    session_id: str
    kind: TurnKind
    state: TurnState
    signal: Signal | None
    conversation: bytes
    response_message: Message
    next_state: list[Message] | None
    first_message: Message | None


class GraphQueries(Database):
    """What `openclaw.sessions` asks of the ledger beside recording turns."""

    def session_nodes(self, session_id: str, limit: int) -> tuple[int, list[TurnNode]]:
        """Return how many turns a session has, and its last ones, oldest first.

        That is the last ``limit``, and the last ``limit`` of those that wait for a next state.
        """
        count = self.rows("SELECT COUNT(*) AS n FROM turns WHERE session_id = ?", (session_id,))[0]["n"]
        if count == 0:
            return 0, []
        waiting = (
            "SELECT number FROM turns INDEXED BY turns_by_session_state"
            " WHERE session_id = ? AND state IN ('waiting', 'ended') ORDER BY number DESC LIMIT ?"
        )
        last = "SELECT number FROM turns WHERE session_id = ? ORDER BY number DESC LIMIT ?"
        found = self.rows(
            f"SELECT {_COLUMNS} FROM turns WHERE conversation IS NOT NULL"
            f" AND (number IN ({waiting}) OR number IN ({last})) ORDER BY number",
            (session_id, limit, session_id, limit),
        )
        return count, [_node(row) for row in found]

    def conversation_nodes(
        self, digests: Sequence[bytes], limit: int, *, session_id: str | None = None, session_prefix: str = ""
    ) -> list[TurnNode]:
        """Return turns by conversation: those of ``digests`` in order, up to the first with a main turn.

        Args:
            digests: of conversations.
            limit: most turns of one conversation; those that wait for a next state come first, then the newest.
            session_id: look in this session only.
            session_prefix: look in sessions with such names only.
        """
        nodes: list[TurnNode] = []
        for digest in digests:
            found = self.rows(
                f"SELECT {_COLUMNS} FROM turns WHERE number IN (SELECT number FROM turns WHERE conversation = ?"
                " AND COALESCE(session_id = ?, substr(session_id, 1, ?) = ?) ORDER BY number DESC LIMIT ?)"
                " ORDER BY state IN ('waiting', 'ended') DESC, number DESC LIMIT ?",
                (digest, session_id, len(session_prefix), session_prefix, _LOOK_BACK, limit),
            )
            nodes += [_node(row) for row in found]
            if any(row["kind"] == "main" for row in found):
                break
        return nodes

    def mark_regenerated(self, turn_id: str) -> None:
        """Note that the user asked for another reply than this turn's; it goes on waiting for a next state."""
        with self.transaction() as connection:
            connection.execute(
                "UPDATE turns SET signal = ?, reason = ? WHERE id = ? AND state IN ('waiting', 'ended')",
                (REGENERATED, REGENERATED, turn_id),
            )

    def regenerated_turns(self, session_id: str) -> list[str]:
        """Return the ids of a session's turns that are marked so and have no next state."""
        found = self.rows(
            "SELECT id FROM turns INDEXED BY turns_by_session_state"
            " WHERE session_id = ? AND signal = ? AND state IN ('waiting', 'ended') ORDER BY number",
            (session_id, REGENERATED),
        )
        return [row["id"] for row in found]

    def idle_sessions(self, before: float, after: str, limit: int) -> tuple[list[str], str]:
        """Return the idle ones of a page of the sessions that have not ended, and where the next page begins.

        Args:
            before: a session is idle when its last turn finished then or earlier, seconds since the epoch.
            after: where the page begins: what the last call returned, or ``""``.
            limit: sessions of a page.
        """
        page = self.rows(
            "SELECT id, (SELECT finished_at FROM turns WHERE session_id = sessions.id ORDER BY number DESC LIMIT 1)"
            " AS active_at FROM sessions WHERE ended_at IS NULL AND id > ? ORDER BY id LIMIT ?",
            (after, limit),
        )
        idle = [row["id"] for row in page if row["active_at"] is not None and row["active_at"] <= before]
        return idle, page[-1]["id"] if len(page) == limit else ""


def _node(row: sqlite3.Row) -> TurnNode:
    first = row["first_message"]
    return TurnNode(
        id=row["id"],
        session_id=row["session_id"],
        kind=row["kind"],
        state=row["state"],
        signal=row["signal"],
        conversation=row["conversation"],
        response_message=json.loads(row["response_message"]),
        next_state=None if row["next_state"] is None else json.loads(row["next_state"]),
        first_message=None if first is None else json.loads(first),
    )
