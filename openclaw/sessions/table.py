"""The sessions in memory: a bounded cache over the ledger, and the turns that they hold as nodes of a graph.

Guarantees: at most ``max_sessions`` sessions, not counting those in use, evicted least recently used first; at most
`NODES_PER_SESSION` turns each, a few hundred bytes per turn. `node_of_record` rebuilds a node from the ledger. The indexes
match the sessions exactly. Not thread-safe; owned by `openclaw.sessions.follow`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from openclaw.ledger.records import Turn, TurnKind
from openclaw.ledger.sessions import TurnNode
from openclaw.messages.fingerprint import (
    CarriedReply,
    History,
    exact_hash,
    join,
    messages_digest,
    reply_digest,
    system_digest,
    trace_digest,
)
from openclaw.owners import owner_of, split_id
from openclaw.sessions.manner import Manner

NodeState = Literal["waiting", "followed", "excluded"]
OPEN_STATES = ("waiting", "ended")


@dataclass(slots=True, eq=False)
class Node:
    """A turn of the message graph.

    Attributes:
        turn_id: the turn.
        kind: ``main`` or ``side``.
        state: ``waiting`` for a next state, ``followed`` by one, or ``excluded`` from training.
        conversation: digest of the conversation up to and with the reply.
        reply: digest of the reply.
        system: digest of the system messages.
        trace: see `openclaw.messages.fingerprint.trace_digest`; empty for a turn loaded from the ledger.
        regenerated: whether the user asked for another reply to the same messages.
        delivered: whether the client got the whole reply, as far as known.
        next_state: digest of the next state, empty without words of the user.
        followed_by: digest of the conversation up to and with the next state.
        went_on: whether the conversation went on from the reply to the next state.
        calls: whether the reply calls tools, so that the ids of its calls name it.
        exact: hash of the reply's content as it stands, see `openclaw.messages.fingerprint.exact_hash`.
        manner: how its request asked; None for a turn loaded from the ledger.
    """

    turn_id: str
    kind: TurnKind
    state: NodeState
    conversation: bytes
    reply: bytes
    system: bytes
    trace: bytes = b""
    regenerated: bool = False
    delivered: bool = True
    next_state: bytes = b""
    followed_by: bytes = b""
    went_on: bool = False
    calls: bool = False
    exact: int = 0
    manner: Manner | None = None

    @property
    def waiting(self) -> bool:
        """Whether it can still get a next state."""
        return self.state == "waiting"

    def answers(self, asked: bytes) -> bool:
        """Return whether the turn replied to the conversation with the digest ``asked``."""
        return join(asked, self.reply) == self.conversation


def node_of_turn(turn: Turn, history: History) -> Node:
    """Return the node of a newly recorded turn, a reply to ``history``."""
    reply = reply_digest(turn.response_message)
    excluded = turn.kind == "side" or turn.reason is not None or turn.finish_reason == "abort"
    return Node(
        turn_id=turn.id,
        kind=turn.kind,
        state="excluded" if excluded else "waiting",
        conversation=join(history.asked, reply),
        reply=reply,
        system=history.system,
        trace=trace_digest(history.last, turn.response_message, reply, history.owner),
        calls="tool_calls" in turn.response_message,
        exact=exact_hash(turn.response_message),
    )


def node_of_record(record: TurnNode) -> Node:
    """Return the node of a turn in the ledger."""
    state: NodeState = "excluded" if record.state == "excluded" else "followed"
    if record.state in OPEN_STATES:
        state = "waiting"
    following = record.next_state if record.signal != "regenerated" else None
    return Node(
        turn_id=record.id,
        kind=record.kind,
        state=state,
        conversation=record.conversation,
        reply=reply_digest(record.response_message),
        system=system_digest(record.first_message),
        regenerated=record.signal == "regenerated",
        next_state=messages_digest(following) if following else b"",
        followed_by=messages_digest(following, record.conversation) if following else b"",
        went_on=bool(following),
        calls="tool_calls" in record.response_message,
        exact=exact_hash(record.response_message),
    )


def correct_went_on(loaded: Iterable[Node], nodes: Sequence[Node]) -> None:
    """Find out which conversations of ``loaded`` turns stopped after the next state, as far as ``nodes`` shows it.

    The ledger does not say it, so a next state counts as gone on from unless there is a reply to it that has none.
    """
    for node in loaded:
        replies = [other for other in nodes if node.followed_by and other.answers(node.followed_by)]
        if replies:
            node.went_on = any(reply.state == "followed" for reply in replies)


NODES_PER_SESSION = 16
COMPARED_SESSIONS = 8
PLAIN_PREFIX = "plain-"


@dataclass(slots=True, eq=False)
class Session:
    """One conversation, or several under one client id.

    Attributes:
        id: stored session id, which names the owner.
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
        return split_id(self.id)[1].startswith(PLAIN_PREFIX)

    def node(self, turn_id: str) -> Node | None:
        """Return the node of a turn, or None."""
        return next((node for node in self.nodes if node.turn_id == turn_id), None)


@dataclass(frozen=True, slots=True)
class Match:
    """The plain session that a request continues.

    Attributes:
        session: the session, or None.
        unknown: the replies of the request that memory does not know; the ledger may know better.
        ambiguous: whether other sessions fit as well.
    """

    session: Session | None
    unknown: list[CarriedReply]
    ambiguous: bool = False


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
        """Return up to ``limit`` sessions, those that had it first."""
        return list(islice(self._entries.get(digest, ()), limit))

    def last(self, digest: bytes, limit: int) -> list[Session]:
        """Return up to ``limit`` sessions, those that got it last."""
        return list(islice(reversed(self._entries.get(digest, {})), limit))


class Table:
    """The sessions by id, and those of clients without ids by their messages."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._known = _Index()
        self._waiting = _Index()
        self._traces = _Index()
        self._issued: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def ids(self) -> list[str]:
        """Return the ids of the sessions in memory."""
        return list(self._sessions)

    def sizes(self) -> dict[str, int]:
        """Return the numbers of sessions, running requests, turns and index entries."""
        return {
            "sessions": len(self._sessions),
            "in_flight": sum(session.in_flight for session in self._sessions.values()),
            "nodes": sum(len(session.nodes) for session in self._sessions.values()),
            "known": len(self._known),
            "waiting": len(self._waiting),
            "traces": len(self._traces),
            "issued": len(self._issued),
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
        """Add a turn; beyond the bound, evict the oldest turn that does not wait, otherwise the oldest.

        The last turn that called tools stays, because its calls name it in all later requests.
        """
        session.nodes.append(node)
        for index, digest in self._entries(session, node):
            index.add(digest, session)
        if session.plain:
            self._issued[node.turn_id] = session
        if len(session.nodes) > NODES_PER_SESSION:
            calling = next((other for other in reversed(session.nodes) if other.calls), None)
            others = [other for other in session.nodes if other is not calling]
            oldest = next((other for other in others if not other.waiting), others[0])
            session.nodes.remove(oldest)
            self._drop(session, oldest)

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
            self._drop(session, node)

    def clear(self, session: Session) -> None:
        """Drop a session's turns; the session stays for its running requests."""
        for node in session.nodes:
            self._drop(session, node)
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

    def find(self, history: History) -> Match:
        """Return the plain session that a request continues.

        The last reply that names a turn of ours decides. If none does, the longest known conversation wins. Of several,
        prefer one whose turn waits, with the same reply to the letter and the same system messages if one of the first
        has them. If none waits, prefer the one that got a next state last.
        """
        for carried in history.replies:
            session = self._issued.get(carried.turn)
            if session is not None and owner_of(session.id) == history.owner:
                return Match(session, _newer(session, history, carried))
        issued = [carried for carried in history.replies if carried.turn]
        for carried in history.replies:
            fitting = self._waiting.first(carried.conversation, COMPARED_SESSIONS)
            alike = [_likeness(session, carried, history.system) for session in fitting]
            likeliest = [session for session, likeness in zip(fitting, alike, strict=True) if likeness == max(alike)]
            if result := likeliest or self._known.last(carried.conversation, 2):
                newer = [other for other in history.replies if other.position > carried.position]
                return Match(result[0], newer + [other for other in issued if other not in newer], len(result) > 1)
        return Match(None, list(history.replies))

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

    def _drop(self, session: Session, node: Node) -> None:
        self._unlink(session, node)
        if self._issued.get(node.turn_id) is session:
            del self._issued[node.turn_id]


def _newer(session: Session, history: History, named: CarriedReply) -> list[CarriedReply]:
    """Return the replies after the last one that a session knows, which is ``named`` or a later one."""
    known = {node.conversation for node in session.nodes}
    newer = []
    for carried in history.replies:
        if carried.position <= named.position or carried.conversation in known:
            break
        newer.append(carried)
    return newer


def _likeness(session: Session, carried: CarriedReply, system: bytes) -> tuple[bool, bool]:
    """Return how much a session's waiting turn is like a carried reply: to the letter, and in the system messages."""
    same = [node for node in session.nodes if node.waiting and node.conversation == carried.conversation]
    return max(((node.exact == carried.exact, node.system == system) for node in same), default=(False, False))
