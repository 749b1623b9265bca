"""The sessions in memory: a bounded cache over the ledger.

Guarantees: at most ``max_sessions`` sessions, those in use apart, the least recently used go first; at most
`NODES_PER_SESSION` turns each; the indexes hold what the sessions hold and nothing else. Not safe across threads;
owned by `openclaw.sessions.follow`.
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
    """One conversation, or several that a client sends under one id.

    Attributes:
        id: its name.
        last_active: when a request last began or ended, seconds since the epoch.
        turns: how many turns were recorded.
        in_flight: requests under way; the session stays in memory as long as there are any.
        nodes: its last turns, oldest first.
        undelivered: turns under way that the client did not wait for.
        loading: set while its turns are read from the ledger.
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
        """Whether it was made for a client that states no id."""
        return self.id.startswith(PLAIN_PREFIX)

    def node(self, turn_id: str) -> Node | None:
        """Return the node of a turn, if it is kept."""
        return next((node for node in self.nodes if node.turn_id == turn_id), None)


class _Index:
    """Digest -> sessions that have it, and how often each, in the order they were added."""

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
    """The sessions by id, and those without a stated id by what was said in them."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._known = _Index()
        self._waiting = _Index()
        self._traces = _Index()

    def __len__(self) -> int:
        return len(self._sessions)

    def sizes(self) -> dict[str, int]:
        """Return how much is held: sessions, requests under way, turns, and entries of the indexes."""
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
        """Keep a new session."""
        self._sessions[session.id] = session

    def touch(self, session: Session, now: float) -> None:
        """Note that a session was used."""
        session.last_active = now
        self._sessions.move_to_end(session.id)

    def remember(self, session: Session, node: Node) -> None:
        """Keep a turn; beyond the bound the oldest goes that does not wait, else the oldest."""
        session.nodes.append(node)
        for index, digest in self._entries(session, node):
            index.add(digest, session)
        if len(session.nodes) > NODES_PER_SESSION:
            oldest = next((other for other in session.nodes if not other.waiting), session.nodes[0])
            session.nodes.remove(oldest)
            self._unlink(session, oldest)

    def set_state(self, session: Session, node: Node, state: NodeState) -> None:
        """Change what became of a turn; the session may have left memory meanwhile."""
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
        """Drop what is known of a session; it stays for the requests that are under way."""
        for node in session.nodes:
            self._unlink(session, node)
        session.nodes.clear()
        session.turns = 0

    def evict(self) -> int:
        """Drop the least recently used sessions beyond the bound; return how many."""
        excess = len(self._sessions) - self._max_sessions
        if excess <= 0:
            return 0
        oldest = list(islice((session for session in self._sessions.values() if session.in_flight == 0), excess))
        for session in oldest:
            self.forget(session)
        return len(oldest)

    def find(self, history: History) -> tuple[Session | None, int]:
        """Return the session without a stated id that a request goes on with, and the position of the known reply.

        The longest known conversation counts; of several, one whose turn waits, with the same system messages if one of
        the first has them. (None, -1) when no conversation is known.
        """
        for carried in history.replies:
            if waiting := self._waiting.first(carried.conversation, COMPARED_SESSIONS):
                same = (session for session in waiting if _same_system(session, carried.conversation, history.system))
                return next(same, waiting[0]), carried.position
            if known := self._known.first(carried.conversation, 1):
                return known[0], carried.position
        return None, -1

    def find_rewritten(self, history: History) -> Session | None:
        """Return the session whose waiting reply a request carries after the conversation before it was rewritten.

        None unless exactly one session in memory can be meant.
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
