"""Sessions: which conversation a request belongs to, whose turn it is, and what it says about the turn before.

Guarantees: a main request that carries an earlier reply back gives that reply's turn its next state, once; a turn is in
the ledger before `finish` returns. Nothing is kept only here: an unknown session is read back from the ledger, so that
a restart, an idle time-out or eviction loses no feedback; only a conversation without an id is not found again once it
was evicted. Memory is bounded by ``max_sessions``, the least recently
used go first.

Owns the table of sessions; used from one event loop. The ledger is called in one thread of its own, in order.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeVar

from openclaw.classify import next_state_after, runtime_session, side_kind
from openclaw.fingerprint import (
    conversation_digest,
    conversation_positions,
    message_digest,
    messages_digest,
    reply_positions,
)
from openclaw.ledger.exceptions import TransitionError
from openclaw.ledger.group_commit import GroupCommit
from openclaw.ledger.records import Message, Turn, TurnKind

logger = logging.getLogger(__name__)

WAITING_PER_SESSION = 8
CONVERSATIONS_PER_SESSION = 32
MAX_SESSION_ID = 256
PLAIN_PREFIX = "plain-"
AFFINITY_SUFFIX = re.compile(r":\d+$")
Origin = Literal["header", "body", "affinity", "runtime", "fingerprint"]
T = TypeVar("T")


class TurnStore(Protocol):
    """What sessions need of the ledger."""

    def record_turn(self, turn: Turn) -> None: ...
    def record_next_state(self, turn_id: str, messages: Sequence[Message], at: float) -> None: ...
    def end_session(self, session_id: str, at: float) -> None: ...
    def waiting_turn(self, session_id: str) -> Turn | None: ...
    def waiting_turns(self, limit: int) -> list[Turn]: ...
    def turn_count(self, session_id: str) -> int: ...
    def transaction(self) -> AbstractContextManager[sqlite3.Connection]: ...


@dataclass(frozen=True)
class Identity:
    """The session id that a request states, and where; None leaves it to the fingerprint."""

    session_id: str | None
    origin: Origin


@dataclass(frozen=True)
class TurnContext:
    """What is known of a turn before it is answered.

    Attributes:
        session_id: its session.
        kind: whose turn it is.
        origin: how the session was found.
        done: whether the session ends with this turn.
        next_state_of: the turn that got its next state from this request, or None.
    """

    session_id: str
    kind: TurnKind
    origin: Origin
    done: bool = False
    next_state_of: str | None = None


@dataclass
class _Waiting:
    turn_id: str
    prompt: bytes
    reply: bytes
    conversation: bytes


@dataclass
class _Session:
    id: str
    last_active: float
    turns: int = 0
    in_flight: int = 0
    ended: bool = False
    waiting: list[_Waiting] = field(default_factory=list)
    conversations: list[bytes] = field(default_factory=list)
    loading: asyncio.Future[None] | None = None


def stated_identity(headers: Mapping[str, str], body_session_id: str | None, messages: Sequence[Message]) -> Identity:
    """Return the session id that a request states, most trusted source first.

    Header ``X-Session-Id``; ``session_id`` in the body; the affinity headers ``session_id`` and ``x-session-affinity``
    without their ``:<n>``; ``sessionId=`` in the Runtime line of the first user message.
    """
    if stated := headers.get("x-session-id"):
        return Identity(stated, "header")
    if body_session_id:
        return Identity(body_session_id, "body")
    if affinity := headers.get("session_id") or headers.get("x-session-affinity"):
        return Identity(AFFINITY_SUFFIX.sub("", affinity), "affinity")
    if stated := runtime_session(messages):
        return Identity(stated, "runtime")
    return Identity(None, "fingerprint")


def _find_reply(session: _Session, messages: Sequence[Message]) -> tuple[_Waiting | None, int | None]:
    """Return the waiting turn whose reply comes last in ``messages``, and where that is.

    A turn that answered these very messages is none: the client sends the request again, and an earlier reply with the
    same words is not the turn's.
    """
    asked = messages_digest(messages)
    for position, digest in reply_positions(messages):
        for item in reversed(session.waiting):
            if item.reply == digest and item.prompt != asked:
                return item, position
    return None, None


class Sessions:
    """Follows every conversation; see the module's guarantees."""

    def __init__(
        self,
        store: TurnStore,
        *,
        idle_seconds: float,
        max_sessions: int,
        clock: Callable[[], float],
        on_event: Callable[[str], None] = lambda name: None,
        on_pending: Callable[[], None] = lambda: None,
    ) -> None:
        """Bind the sessions to their ledger.

        Args:
            store: the ledger.
            idle_seconds: a session without a request for this long ends.
            max_sessions: most sessions in memory.
            clock: seconds since the epoch.
            on_event: called with the name of what happened: ``next_state``, ``revived``, ``ended_idle``,
                ``ended_done``, ``evicted``, ``next_state_conflict``.
            on_pending: called when a turn became pending or a session ended.
        """
        self._store = store
        self._idle_seconds = idle_seconds
        self._max_sessions = max_sessions
        self._clock = clock
        self._on_event = on_event
        self._on_pending = on_pending
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._by_conversation: dict[bytes, list[str]] = {}
        self._evicted: set[str] = set()
        self._commits = GroupCommit(store)
        self._call = self._commits.call

    def __len__(self) -> int:
        return len(self._sessions)

    async def restore(self) -> int:
        """Read the turns back that wait for a next state; return how many."""
        turns = await self._call(self._store.waiting_turns, self._max_sessions)
        for turn in reversed(turns):
            session = self._sessions.setdefault(turn.session_id, _Session(turn.session_id, turn.finished_at))
            session.turns = await self._call(self._store.turn_count, turn.session_id)
            session.ended = turn.state == "ended"
            self._remember(session, turn)
        return len(turns)

    async def begin(
        self,
        headers: Mapping[str, str],
        messages: Sequence[Message],
        *,
        body_session_id: str | None = None,
        stated_kind: TurnKind | None = None,
        done: bool = False,
    ) -> TurnContext:
        """Find the session of a request, and commit the next state that it carries.

        The session stays in memory until `finish` or `abandon` is called with what this returns.
        """
        kind: TurnKind = stated_kind or ("side" if side_kind(messages) else "main")
        identity = stated_identity(headers, body_session_id, messages)
        if identity.session_id is None:
            session, waiting, position = self._find_conversation(messages)
        else:
            session = await self._find_session(identity.session_id)
            waiting, position = _find_reply(session, messages)
        self._touch(session)
        context = TurnContext(session.id, kind, identity.origin, done)
        if kind == "side" or waiting is None or position is None:
            return context
        following = next_state_after(messages, position)
        try:
            if following and await self._record_next_state(session, waiting, following):
                return replace(context, next_state_of=waiting.turn_id)
        except BaseException:
            self._release(session)
            raise
        return context

    async def finish(self, context: TurnContext, turn: Turn) -> Turn:
        """Commit a turn and return it with its index; from now on it waits for its next state."""
        session = self._sessions[context.session_id]
        turn = replace(turn, index=session.turns)
        session.turns += 1
        try:
            await self._call(self._store.record_turn, turn)
            session.ended = False
            if turn.kind == "main" and turn.reason is None and turn.finish_reason != "abort":
                self._remember(session, turn)
            if context.done:
                await self._end(session, "ended_done")
        finally:
            self._release(session)
        return turn

    async def end(self, session_id: str) -> bool:
        """End a session because its client says so; return whether it is known. A further request goes on with it."""
        session = self._sessions.get(session_id) or _Session(session_id, self._clock())
        if session_id not in self._sessions and not await self._call(self._store.turn_count, session_id):
            return False
        await self._end(session, "ended_done")
        return True

    def abandon(self, context: TurnContext) -> None:
        """Forget a turn that was never answered."""
        self._release(self._sessions[context.session_id])

    async def sweep(self) -> int:
        """End the sessions that were idle for too long or fell out of memory; return how many were idle.

        One that the ledger cannot end is left for the next sweep, after the others; the first error is then raised.
        """
        limit = self._clock() - self._idle_seconds
        idle = [
            session
            for session in self._sessions.values()
            if not session.ended and session.in_flight == 0 and session.last_active <= limit
        ]
        errors: list[Exception] = []
        for session in idle:
            if session.in_flight == 0:
                try:
                    await self._end(session, "ended_idle")
                except Exception as error:
                    logger.exception("session %s could not be ended", session.id)
                    errors.append(error)
        evicted, self._evicted = self._evicted, set()
        for name in evicted - self._sessions.keys():
            try:
                await self._call(self._store.end_session, name, self._clock())
            except Exception as error:
                logger.exception("session %s could not be ended", name)
                self._evicted.add(name)
                errors.append(error)
        if errors:
            raise errors[0]
        return len(idle)

    async def close(self) -> None:
        """Let the ledger's thread finish what it was given."""
        await self._commits.close()

    def _find_conversation(self, messages: Sequence[Message]) -> tuple[_Session, _Waiting | None, int | None]:
        """Return the session whose conversation a request without an id goes on with, or a new one, in use."""
        for position, digest in conversation_positions(messages):
            known = [self._sessions[name] for name in self._by_conversation.get(digest, ())]
            for session in known:
                for item in session.waiting:
                    if item.conversation == digest:
                        session.in_flight += 1
                        return session, item, position
            if known:
                known[-1].in_flight += 1
                return known[-1], None, None
        session = _Session(f"{PLAIN_PREFIX}{uuid.uuid4().hex[:16]}", self._clock(), in_flight=1)
        self._sessions[session.id] = session
        return session, None, None

    async def _find_session(self, session_id: str) -> _Session:
        """Return a session by its id, read back from the ledger when it is not in memory, in use."""
        session = self._sessions.get(session_id)
        if session is None:
            session = _Session(session_id, self._clock())
            self._sessions[session_id] = session
            session.loading = asyncio.ensure_future(self._load(session))
        session.in_flight += 1
        try:
            if session.loading is not None:
                await asyncio.shield(session.loading)
        except BaseException:
            session.in_flight -= 1
            raise
        return session

    async def _load(self, session: _Session) -> None:
        try:
            session.turns = await self._call(self._store.turn_count, session.id)
            turn = await self._call(self._store.waiting_turn, session.id) if session.turns else None
        except BaseException:
            self._forget(session)
            raise
        finally:
            session.loading = None
        if turn is not None:
            session.ended = turn.state == "ended"
            self._remember(session, turn)
            self._on_event("revived")

    async def _record_next_state(self, session: _Session, waiting: _Waiting, following: list[Message]) -> bool:
        """Commit a next state; the turn is taken off the list first, so that no second request gives it another."""
        session.waiting.remove(waiting)
        try:
            await self._call(self._store.record_next_state, waiting.turn_id, following, self._clock())
        except TransitionError as error:
            logger.error("turn %s has a next state already: %s", waiting.turn_id, error)
            self._on_event("next_state_conflict")
            return False
        except Exception:
            session.waiting.append(waiting)
            raise
        self._on_event("next_state")
        self._on_pending()
        return True

    def _remember(self, session: _Session, turn: Turn) -> None:
        """Let a turn wait for its next state."""
        prompt = messages_digest(turn.messages)
        conversation = conversation_digest(turn.messages, turn.response_message)
        reply = message_digest({**turn.response_message, "role": "assistant"})
        session.waiting = [*session.waiting, _Waiting(turn.id, prompt, reply, conversation)][-WAITING_PER_SESSION:]
        if not session.id.startswith(PLAIN_PREFIX):
            return
        session.conversations.append(conversation)
        self._by_conversation.setdefault(conversation, []).append(session.id)
        while len(session.conversations) > CONVERSATIONS_PER_SESSION:
            self._unlink(session, session.conversations.pop(0))

    def _unlink(self, session: _Session, conversation: bytes) -> None:
        names = self._by_conversation[conversation]
        names.remove(session.id)
        if not names:
            del self._by_conversation[conversation]

    async def _end(self, session: _Session, event: str) -> None:
        session.ended = True
        try:
            await self._call(self._store.end_session, session.id, self._clock())
        except Exception:
            session.ended = False
            raise
        self._on_event(event)
        self._on_pending()

    def _touch(self, session: _Session) -> None:
        session.last_active = self._clock()
        self._sessions.move_to_end(session.id)

    def _release(self, session: _Session) -> None:
        session.in_flight -= 1
        session.last_active = self._clock()
        self._evict()

    def _evict(self) -> None:
        """Forget the least recently used sessions beyond the bound; their turns are in the ledger."""
        excess = len(self._sessions) - self._max_sessions
        if excess <= 0:
            return
        oldest = [session for session in self._sessions.values() if session.in_flight == 0][:excess]
        for session in oldest:
            self._forget(session)
            if not session.ended:
                self._evicted.add(session.id)
            self._on_event("evicted")

    def _forget(self, session: _Session) -> None:
        del self._sessions[session.id]
        for conversation in session.conversations:
            self._unlink(session, conversation)
