"""The sessions in memory: a bounded cache over the ledger.

Guarantees: at most ``max_sessions`` sessions, not counting those in use, evicted least recently used first; at most
`NODES_PER_SESSION` turns each. The indexes match the sessions exactly. Not thread-safe; owned by
`openclaw.sessions.follow`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from openclaw.messages.fingerprint import History
from openclaw.sessions.nodes import Node, NodeState

NODES_PER_SESSION = 16
COMPARED_SESSIONS = 8
PLAIN_PREFIX = "plain-"


@dataclass(slots=True, eq=False)
class Session:
    """One conversation, or several under one client id.

    Attributes:
        id: session id.
        last_active: when a request last began or ended, seconds since the epoch.
        turns: number of recorded turns.
        in_flight: running requests; the session stays in memory while there are any.
        nodes: its newest turns, oldest first.
        undelivered: running turns whose client disconnected.
        loading: set while its turns are loaded from the ledger.
    """

    id: str
    last_active: float
    turns: int = 0
    in_flight: int = 0
    nodes: list[Node] = field(default_factory=list)
    undelivered: set[str] = field(default_factory=set)
    loading: asyncio.Future[None] | None = None

    @property
    def plain(self) -> bool:
        """Whether it belongs to a client without session ids."""
        return self.id.startswith(PLAIN_PREFIX)

    def node(self, turn_id: str) -> Node | None:
        """Return the node of a turn, or None."""
        return next((node for node in self.nodes if node.turn_id == turn_id), None)


class _Index:
    """Maps a digest to the sessions that have it, with counts, in insertion order."""

    def __init__(self) -> None:
        self._entries: dict[bytes, dict[Session, int]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, digest: bytes, session: Session) -> None:
        sessions = self._entries.setdefault(digest, {})
        sessions[session] = sessions.get(session, 0) + 1

    def remove(self, digest: bytes, session: Session) -> None:
        sessions = self._entries[digest]
        sessions[session] -= 1
        if sessions[session] == 0:
            del sessions[session]
        if not sessions:
            del self._entries[digest]

    def first(self, digest: bytes, limit: int) -> list[Session]:
        """Return up to ``limit`` sessions."""
        return list(islice(self._entries.get(digest, ()), limit))


class Table:
    """The sessions by id, and those of clients without ids by their messages."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._known = _Index()
        self._waiting = _Index()
        self._traces = _Index()

    def __len__(self) -> int:
        return len(self._sessions)

    def sizes(self) -> dict[str, int]:
        """Return the numbers of sessions, running requests, turns and index entries."""
        return {
            "sessions": len(self._sessions),
            "in_flight": sum(session.in_flight for session in self._sessions.values()),
            "nodes": sum(len(session.nodes) for session in self._sessions.values()),
            "known": len(self._known),
            "waiting": len(self._waiting),
            "traces": len(self._traces),
        }

    def get(self, session_id: str) -> Session | None:
        """Return a session in memory."""
        return self._sessions.get(session_id)

    def add(self, session: Session) -> None:
        """Add a new session."""
        self._sessions[session.id] = session

    def touch(self, session: Session, now: float) -> None:
        """Mark a session as used."""
        session.last_active = now
        self._sessions.move_to_end(session.id)

    def remember(self, session: Session, node: Node) -> None:
        """Add a turn; beyond the bound, evict the oldest turn that does not wait, otherwise the oldest."""
        session.nodes.append(node)
        for index, digest in self._entries(session, node):
            index.add(digest, session)
        if len(session.nodes) > NODES_PER_SESSION:
            oldest = next((other for other in session.nodes if not other.waiting), session.nodes[0])
            session.nodes.remove(oldest)
            self._unlink(session, oldest)

    def set_state(self, session: Session, node: Node, state: NodeState) -> None:
        """Set a turn's state; the session may have left memory meanwhile."""
        kept = node in session.nodes and self._sessions.get(session.id) is session
        if kept:
            self._unlink(session, node)
        node.state = state
        if kept:
            for index, digest in self._entries(session, node):
                index.add(digest, session)

    def forget(self, session: Session) -> None:
        """Drop a session from memory."""
        del self._sessions[session.id]
        for node in session.nodes:
            self._unlink(session, node)

    def clear(self, session: Session) -> None:
        """Drop a session's turns; the session stays for its running requests."""
        for node in session.nodes:
            self._unlink(session, node)
        session.nodes.clear()
        session.turns = 0

    def evict(self) -> int:
        """Evict the least recently used sessions beyond the bound; return their number."""
        excess = len(self._sessions) - self._max_sessions
        if excess <= 0:
            return 0
        oldest = list(islice((session for session in self._sessions.values() if session.in_flight == 0), excess))
        for session in oldest:
            self.forget(session)
        return len(oldest)

    def find(self, history: History) -> tuple[Session | None, int]:
        """Return the plain session that a request continues, and the position of the known reply.

        The longest known conversation wins. Of several, prefer one whose turn waits, with the same system messages if one
        of the first has them. Return (None, -1) if no conversation is known.
        """
        for carried in history.replies:
            if waiting := self._waiting.first(carried.conversation, COMPARED_SESSIONS):
                same = (session for session in waiting if _same_system(session, carried.conversation, history.system))
                return next(same, waiting[0]), carried.position
            if known := self._known.first(carried.conversation, 1):
                return known[0], carried.position
        return None, -1

    def find_rewritten(self, history: History) -> Session | None:
        """Return the session whose waiting reply a request carries in a rewritten conversation.

        Return None unless exactly one session in memory matches.
        """
        for carried in history.replies:
            if meant := self._traces.first(carried.trace, 2):
                return meant[0] if len(meant) == 1 else None
        return None

    def _entries(self, session: Session, node: Node) -> Iterator[tuple[_Index, bytes]]:
        if not session.plain:
            return
        yield self._known, node.conversation
        if node.waiting:
            yield self._waiting, node.conversation
            if node.trace:
                yield self._traces, node.trace

    def _unlink(self, session: Session, node: Node) -> None:
        for index, digest in self._entries(session, node):
            index.remove(digest, session)


def _same_system(session: Session, conversation: bytes, system: bytes) -> bool:
    return any(node.waiting and node.conversation == conversation and node.system == system for node in session.nodes)
