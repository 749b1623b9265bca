"""Looks up turns by session or by conversation, without their tokens.

Guarantees: the result is enough to continue a session that is no longer in memory. Only reads and sets marks;
`openclaw.ledger.turns` records next states.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from groundwork.chat_messages import Message
from openclaw.ledger.codec import pack_ids, unpack_ids
from openclaw.ledger.database import Database
from openclaw.ledger.records import Signal, TurnKind, TurnState

REGENERATED = "regenerated"
_LOOK_BACK = 1000
_COLUMNS = (
    "id, session_id, kind, state, signal, conversation, response_message, next_state,"
    " json_extract(messages, '$[0]') AS first_message"
)


@dataclass(frozen=True)
class TurnNode:
    """A turn without its tokens; ``first_message`` is its request's first message."""

    id: str
    session_id: str
    kind: TurnKind
    state: TurnState
    signal: Signal | None
    conversation: bytes
    response_message: Message
    next_state: list[Message] | None
    first_message: Message | None


@dataclass(frozen=True)
class RecordedReply:
    """The tokens of a turn's reply; ``prompt_end`` has the last ids of its prompt."""

    conversation: bytes
    response_ids: list[int]
    prompt_end: list[int]


class GraphQueries(Database):
    """The ledger's queries for `openclaw.sessions`, besides recording turns."""

    def session_nodes(self, session_id: str, limit: int) -> tuple[int, list[TurnNode]]:
        """Return a session's number of turns, and its newest turns, oldest first.

        These are the last ``limit`` turns, and the last ``limit`` turns that wait for a next state.
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
        self,
        digests: Sequence[bytes],
        limit: int,
        *,
        turns: Sequence[str] = (),
        session_id: str | None = None,
        session_prefix: str = "",
    ) -> list[TurnNode]:
        """Return named turns, then the turns of the conversations ``digests``, up to the first with a main turn.

        Args:
            digests: of conversations.
            limit: most turns per conversation; those that wait for a next state come first, then the newest.
            turns: ids of turns that count in any conversation.
            session_id: search only this session.
            session_prefix: search only sessions with this prefix.
        """
        within = "COALESCE(session_id = ?, substr(session_id, 1, ?) = ?)"
        there = (session_id, len(session_prefix), session_prefix)
        nodes: list[TurnNode] = []
        if turns:
            marks = ", ".join("?" for _ in turns)
            found = self.rows(
                f"SELECT {_COLUMNS} FROM turns WHERE id IN ({marks}) AND conversation IS NOT NULL AND {within}",
                (*turns, *there),
            )
            nodes = [_node(row) for row in found]
        for digest in digests:
            found = self.rows(
                f"SELECT {_COLUMNS} FROM turns WHERE number IN (SELECT number FROM turns WHERE conversation = ?"
                f" AND {within} ORDER BY number DESC LIMIT ?)"
                " ORDER BY state IN ('waiting', 'ended') DESC, number DESC LIMIT ?",
                (digest, *there, _LOOK_BACK, limit),
            )
            nodes += [_node(row) for row in found]
            if any(row["kind"] == "main" for row in found):
                break
        return nodes

    def session_of(self, turn_id: str) -> str:
        """Return the session of a turn.

        Raises:
            UnknownRecordError: if the ledger has no such turn.
        """
        return self.turn_row(turn_id, "session_id")["session_id"]

    def recorded_replies(self, digests: Sequence[bytes], prompt_end: int) -> list[RecordedReply]:
        """Return the newest reply of each conversation in ``digests`` that has one with ids.

        Args:
            digests: of conversations.
            prompt_end: number of ids from the end of the prompt.
        """
        replies: list[RecordedReply] = []
        for digest in digests:
            for row in self.rows(
                "SELECT response_ids, substr(prompt_ids, ?) AS prompt_end FROM turns"
                " WHERE conversation = ? AND length(response_ids) > 0 ORDER BY number DESC LIMIT 1",
                (-prompt_end * len(pack_ids([0])), digest),
            ):
                ids, end = unpack_ids(row["response_ids"]), unpack_ids(row["prompt_end"])
                replies.append(RecordedReply(digest, ids, end))
        return replies

    def mark_regenerated(self, turn_id: str) -> None:
        """Mark a turn whose reply the user had regenerated; it keeps waiting for a next state."""
        with self.transaction() as connection:
            connection.execute(
                "UPDATE turns SET signal = ?, reason = ? WHERE id = ? AND state IN ('waiting', 'ended')",
                (REGENERATED, REGENERATED, turn_id),
            )

    def regenerated_turns(self, session_id: str) -> list[str]:
        """Return the ids of a session's regenerated turns without a next state."""
        found = self.rows(
            "SELECT id FROM turns INDEXED BY turns_by_session_state"
            " WHERE session_id = ? AND signal = ? AND state IN ('waiting', 'ended') ORDER BY number",
            (session_id, REGENERATED),
        )
        return [row["id"] for row in found]

    def idle_sessions(self, before: float, after: str, limit: int) -> tuple[list[str], str]:
        """Return the idle sessions of one page of open sessions, and the start of the next page.

        Args:
            before: a session is idle if its last turn finished at this time or earlier, seconds since the epoch.
            after: start of the page: the result of the last call, or ``""``.
            limit: sessions per page.
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
