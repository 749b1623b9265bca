"""Follows conversations: finds a request's session, commits next states and records turns.

Guarantees: a main request that carries an earlier reply back gives that reply's turn its next state. What the
conversation went on from takes the place of what it did not (`openclaw.sessions.earlier_turns.relate`). A turn is in
the ledger before `finish` returns. Memory is only a cache, bounded by ``max_sessions``: missing sessions are loaded from
the ledger, so a restart, an idle time-out or eviction loses no feedback.

Owns the table of sessions; used from one event loop. Calls the ledger in one thread of its own, in order.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from typing import Literal

from groundwork.chat_messages import Message
from openclaw.config.bounds import SESSION_ID
from openclaw.ledger.exceptions import LedgerUnavailableError, UnknownRecordError
from openclaw.ledger.group_commit import GroupCommit
from openclaw.ledger.records import Tokens, Turn, TurnKind
from openclaw.ledger.sessions import Forgotten, TurnNode
from openclaw.ledger.sessions import Sessions as StoredSessions
from openclaw.ledger.store import Ledger
from openclaw.messages.classify import Asked, runtime_session, side_kind
from openclaw.messages.fingerprint import CarriedReply, History, read_history
from openclaw.owners import LOCAL, episode_of, logged_name, owner_of, root, stored_id
from openclaw.privacy.secret_finder import kept_id
from openclaw.sessions.earlier_turns import (
    Asking,
    Consequences,
    RegeneratedPolicy,
    RelationKind,
    answers_to,
    last_reply,
    relate,
    relate_own,
    unrecognised,
)
from openclaw.sessions.manner import Manner, manner_of
from openclaw.sessions.table import (
    NODES_PER_SESSION,
    PLAIN_PREFIX,
    Match,
    Session,
    Table,
    correct_went_on,
    node_of_record,
    node_of_turn,
)

AFFINITY_HEADERS = ("session_id", "session-id", "x-session-affinity")
CLAUDE_SESSION, CLAUDE_AGENT = "x-claude-code-session-id", "x-claude-code-agent-id"
SESSION_HEADERS = ("x-session-id", "thread-id", *AFFINITY_HEADERS, CLAUDE_SESSION, CLAUDE_AGENT)
"""All that name a session, each of at most `SESSION_ID` characters."""
AFFINITY_SUFFIX = re.compile(r":\d+$")
RETRY_COUNT = "x-stainless-retry-count"
Origin = Literal["header", "body", "affinity", "runtime", "fingerprint"]


@dataclass(frozen=True)
class Identity:
    """The stored id of a request's session and its source; None leaves it to the fingerprint."""

    session_id: str | None
    origin: Origin


def stated_identity(
    headers: Mapping[str, str], body_session_id: str | None, messages: Sequence[Message], owner: str = LOCAL
) -> Identity:
    """Return a request's session from the most trusted source; it is always a session of ``owner``.

    Header ``X-Session-Id``; ``session_id`` in the body; Codex's header ``thread-id``, which names one conversation; the
    affinity headers ``session_id``, ``session-id`` and ``x-session-affinity`` without their ``:<n>``; the headers of Claude
    Code, whose sub-agents share its session's id, so theirs follows it; ``sessionId=`` in the Runtime line of OpenClaw's
    first user message.
    """
    stated, origin = _stated(headers, body_session_id, messages)
    return Identity(stored_id(owner, kept_id(stated)) if stated else None, origin)


def _stated(
    headers: Mapping[str, str], body_session_id: str | None, messages: Sequence[Message]
) -> tuple[str | None, Origin]:
    if stated := headers.get("x-session-id"):
        return stated, "header"
    if body_session_id:
        return body_session_id, "body"
    if thread := headers.get("thread-id"):
        return thread, "header"
    if affinity := next((headers[name] for name in AFFINITY_HEADERS if headers.get(name)), None):
        return AFFINITY_SUFFIX.sub("", affinity), "affinity"
    if claude := headers.get(CLAUDE_SESSION):
        agent = headers.get(CLAUDE_AGENT)
        return f"{claude}/{agent}" if agent else claude, "header"
    stated = runtime_session(messages)
    if stated and len(stated) <= SESSION_ID.most:
        return stated, "runtime"
    return None, "fingerprint"


def is_retry(headers: Mapping[str, str]) -> bool:
    """Return whether the client declares a retry, as the OpenAI libraries do."""
    count = headers.get(RETRY_COUNT, "")
    return count.isdigit() and int(count) > 0


LOADED_NODES = NODES_PER_SESSION // 2
LOOKED_UP_REPLIES = 64
LOOKED_UP_TURNS = 8


class SessionFinder:
    """Finds sessions by id or by their messages."""

    def __init__(
        self,
        table: Table,
        stored: StoredSessions,
        commits: GroupCommit,
        *,
        clock: Callable[[], float],
        on_event: Callable[[str], None],
    ) -> None:
        self._table = table
        self._stored = stored
        self._call = commits.call
        self._clock = clock
        self._on_event = on_event

    async def by_words(self, history: History) -> Session:
        """Return the session that a request without an id continues, or a new one of its owner, in use.

        If memory knows the last reply, there is no await before `begin` relates the request, so two requests with the
        same words each find their own session.
        """
        match = self._table.find(history)
        if not match.unknown:
            return self._use(match, history)
        records = await self._call(
            partial(
                self._stored.nodes_of_conversations,
                turns=_turns(match.unknown),
                session_prefix=stored_id(history.owner, PLAIN_PREFIX),
            ),
            _conversations(match.unknown),
            LOOKED_UP_TURNS,
        )
        opened: list[Session] = []
        try:
            for name in dict.fromkeys(record.session_id for record in records):
                opened.append(await self.by_id(name))
            self._merge(records)
            return self._use(self._table.find(history), history)
        finally:
            for other in opened:
                other.in_flight -= 1

    def _use(self, match: Match, history: History) -> Session:
        """Return the matching session, or a new one, in use."""
        session = match.session or (self._table.find_rewritten(history) if match.unknown else None)
        if session is None:
            session = Session(stored_id(history.owner, f"{PLAIN_PREFIX}{uuid.uuid4().hex[:16]}"), self._clock())
            self._table.add(session)
        if match.ambiguous:
            self._on_event("ambiguous")
        session.in_flight += 1
        return session

    async def by_id(self, session_id: str) -> Session:
        """Return a session by id, from memory or the ledger, in use."""
        session = self._table.get(session_id)
        if session is None:
            session = Session(session_id, self._clock())
            self._table.add(session)
            session.loading = asyncio.ensure_future(self._load(session))
        session.in_flight += 1
        try:
            if session.loading is not None:
                await asyncio.shield(session.loading)
        except BaseException:
            session.in_flight -= 1
            raise
        return session

    async def _load(self, session: Session) -> None:
        try:
            session.turns, records = await self._call(self._stored.nodes, session.id, LOADED_NODES)
        except BaseException:
            self._table.forget(session)
            raise
        finally:
            session.loading = None
        for record in records:
            self._table.remember(session, node_of_record(record))
        correct_went_on(session.nodes, session.nodes)
        if any(node.waiting for node in session.nodes):
            self._on_event("revived")

    async def complete(self, session: Session, history: History) -> None:
        """Load the older turns that a request carries but memory does not have."""
        if session.turns <= len(session.nodes):
            return
        if unknown := unrecognised(history, session.nodes):
            self._merge(
                await self._call(
                    partial(self._stored.nodes_of_conversations, turns=_turns(unknown), session_id=session.id),
                    _conversations(unknown),
                    LOOKED_UP_TURNS,
                )
            )

    def _merge(self, records: Sequence[TurnNode]) -> None:
        """Add loaded turns, unless memory already has them."""
        for record in records:
            session = self._table.get(record.session_id)
            if session is not None and session.node(record.id) is None:
                node = node_of_record(record)
                self._table.remember(session, node)
                correct_went_on([node], session.nodes)


def _conversations(carried: Sequence[CarriedReply]) -> list[bytes]:
    return [reply.conversation for reply in carried[:LOOKED_UP_REPLIES]]


def _turns(carried: Sequence[CarriedReply]) -> list[str]:
    return [reply.turn for reply in carried if reply.turn][:LOOKED_UP_REPLIES]


logger = logging.getLogger(__name__)

SWEPT_SESSIONS = 500


@dataclass(frozen=True)
class TurnContext:
    """The context of a turn before its reply.

    Attributes:
        session_id: the stored id of its session.
        kind: ``main`` or ``side``.
        origin: how the session was found.
        done: whether the session ends with this turn.
        relation: what the request means for earlier turns.
        unlike: whether it carries another reply where one of ours waits, see `Relation.unlike`.
        next_state_of: the turn that got its next state from this request, or None.
        history: the digests of its messages.
        manner: how the request asks, besides its words.
    """

    session_id: str
    kind: TurnKind
    origin: Origin
    done: bool
    relation: RelationKind
    history: History = field(repr=False)
    next_state_of: str | None = None
    unlike: bool = False
    manner: Manner = field(default_factory=Manner)


@dataclass(frozen=True)
class Place:
    """Where a conversation stands.

    Attributes:
        session_id: the stored id of its session, or None if no turn of it is recorded.
        turn_id: the turn of its last reply to the user, or None if it is not known.
        turns: number of recorded turns of the session.
        ambiguous: whether another session has the same conversation, and nothing says which one is meant.
    """

    session_id: str | None = None
    turn_id: str | None = None
    turns: int = 0
    ambiguous: bool = False


class Sessions:
    """Follows every conversation; see the module's guarantees.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> folder = TemporaryDirectory()
        >>> ledger = Ledger(f"{folder.name}/ledger.sqlite")
        >>> async def first_request():
        ...     sessions = Sessions(ledger, idle_seconds=600.0, max_sessions=100, clock=lambda: 1.0)
        ...     context = await sessions.begin({"x-session-id": "a"}, [{"role": "user", "content": "hi"}])
        ...     sessions.abandon(context)
        ...     return context.kind, context.origin
        >>> asyncio.run(first_request())
        ('main', 'header')
        >>> ledger.close(); folder.cleanup()
    """

    def __init__(
        self,
        store: Ledger,
        *,
        idle_seconds: float,
        max_sessions: int,
        clock: Callable[[], float],
        regenerated: RegeneratedPolicy = "exclude",
        on_event: Callable[[str], None] = lambda name: None,
        on_pending: Callable[[], None] = lambda: None,
        on_forgotten: Callable[[str], None] = lambda session_id: None,
    ) -> None:
        """Create the sessions over a ledger.

        Args:
            store: the ledger.
            idle_seconds: a session without a request for this long ends.
            max_sessions: most sessions in memory.
            clock: seconds since the epoch.
            regenerated: whether regenerated turns are excluded from training or judged as rejected.
            on_event: called with the name of an event: ``next_state``, ``regeneration``, ``rejected``, ``retry``,
                ``branch``, ``replaced``, ``late``, ``held``, ``unlike``, ``rewritten``, ``ambiguous``, ``conflict``,
                ``revived``, ``ended_idle``, ``ended_done``, ``evicted``, ``forgotten``.
            on_pending: called when a turn became pending or a session ended.
            on_forgotten: called with the stored id of a session whose contents must not outlive it.
        """
        self._store = store
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._on_event = on_event
        self._on_pending = on_pending
        self._on_forgotten = on_forgotten
        self._table = Table(max_sessions)
        self._swept = ""
        self._unerased = False
        self._commits = GroupCommit(store)
        self._call = self._commits.call
        self._finder = SessionFinder(self._table, store.sessions, self._commits, clock=clock, on_event=on_event)
        self._consequences = Consequences(
            self._table,
            store.turns,
            self._commits,
            regenerated=regenerated,
            clock=clock,
            on_event=on_event,
            on_pending=on_pending,
        )

    def __len__(self) -> int:
        return len(self._table)

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the memory, see `Table.sizes`."""
        return self._table.sizes()

    async def begin(
        self,
        headers: Mapping[str, str],
        messages: Sequence[Message],
        *,
        owner: str = LOCAL,
        body_session_id: str | None = None,
        stated_kind: TurnKind | None = None,
        done: bool = False,
        tools: bool = False,
        structured: bool = False,
        streamed: bool = False,
        history: History | None = None,
        beside: bool = False,
    ) -> TurnContext:
        """Find the session of a request of ``owner``, and commit the next states that it carries.

        The session stays in memory until `finish` or `abandon` is called with the returned context. ``history`` has the
        digests of the messages, if the caller already knows them. ``tools``, ``structured`` and ``streamed`` say whether the
        request offers tools, wants JSON and asks for a stream, see `Manner`. With ``beside``, the same question as before wants
        another answer beside the first one, which is not regenerated.
        """
        kind: TurnKind = stated_kind or ("side" if side_kind(messages, Asked(tools, headers)) else "main")
        identity = stated_identity(headers, body_session_id, messages, owner)
        history = history or read_history(messages, owner)
        session = await self._find(identity, history)
        try:
            self._table.touch(session, self._clock())
            manner = manner_of(messages, tools=tools, structured=structured, streamed=streamed)
            if kind == "main":
                asking = Asking(manner, self._consequences.passed_over, beside or is_retry(headers))
                relation = relate(messages, history, session.nodes, asking)
            else:
                relation = relate_own(messages, history, session.nodes)
            given = await self._consequences.carry_out(session, relation)
        except BaseException:
            self._release(session)
            raise
        unlike = relation.unlike
        return TurnContext(session.id, kind, identity.origin, done, relation.kind, history, given, unlike, manner)

    async def place(
        self, headers: Mapping[str, str], messages: Sequence[Message], *, owner: str, body_session_id: str | None = None
    ) -> Place:
        """Return where a conversation of ``owner`` stands, without giving any turn a next state."""
        identity, history = stated_identity(headers, body_session_id, messages, owner), read_history(messages, owner)
        session = await self._find(identity, history)
        try:
            node = last_reply(messages, history, session.nodes)
            ambiguous = identity.session_id is None and self._table.find(history).ambiguous
        finally:
            self._release(session)
        if session.turns:
            return Place(session.id, node.turn_id if node else None, session.turns, ambiguous)
        if session.in_flight == 0 and self._table.get(session.id) is session:
            self._table.forget(session)
        return Place()

    async def _find(self, identity: Identity, history: History) -> Session:
        """Return the session of a request, which stays in memory until `_release`."""
        if identity.session_id is None:
            return await self._finder.by_words(history)
        session = await self._finder.by_id(identity.session_id)
        try:
            await self._finder.complete(session, history)
        except BaseException:
            self._release(session)
            raise
        return session

    async def finish(self, context: TurnContext, turn: Turn) -> Turn:
        """Commit a turn and return it as `record` does; it now waits for its next state."""
        session = self._in_use(context)
        try:
            turn = await self.record(context, turn)
            if context.done:
                await self._end(session.id, "ended_done")
        finally:
            self._release(session)
        return turn

    async def record(self, context: TurnContext, turn: Turn) -> Turn:
        """Commit another choice of the same request, before its `finish`; it waits for a next state, too.

        Returns:
            The turn as it is stored; without its conversation if its session was forgotten.
        """
        session = self._in_use(context)
        node = node_of_turn(turn, context.history)
        turn = replace(turn, index=session.turns, conversation=node.conversation)
        session.turns += 1
        recorded = await self._call(self._store.turns.record, turn)
        if recorded is None:
            self._on_event("forgotten")
            self._on_forgotten(session.id)
            return replace(turn, conversation=None)
        if recorded.state == "excluded":
            node.state = "excluded"
        node.delivered, node.manner = turn.id not in session.undelivered, context.manner
        session.undelivered.discard(turn.id)
        if episode_of(owner_of(session.id)) is not None:
            answers = answers_to(context.history, session.nodes, node.kind)
            if lost := [each.turn_id for each in answers if not each.delivered]:
                await self._call(self._store.turns.note_lost, lost)
        self._table.remember(session, node)
        return recorded

    async def spent_later(self, turn_id: str, owner: str, tokens: Tokens) -> None:
        """Count what a turn of ``owner`` took after it was recorded."""
        await self._call(self._store.usage.add_to_turn, turn_id, owner, tokens)

    async def end(self, session_id: str) -> bool:
        """End a session at its client's request; return whether it is known. A further request resumes it."""
        turns, _ = await self._call(self._store.sessions.nodes, session_id, 1)
        if turns == 0:
            return self._table.get(session_id) is not None
        await self._end(session_id, "ended_done")
        return True

    async def forget(self, session_id: str) -> Forgotten:
        """Delete a session from memory and ledger; its running replies are not recorded.

        Raises:
            UnknownRecordError: if there is none.
        """
        session = self._table.get(session_id)
        under_way = session is not None and session.in_flight > 0
        gone = await self._call(partial(self._store.sessions.forget, session_id, under_way=under_way))
        session = self._table.get(session_id)
        if session is not None:
            self._table.clear(session)
        self._on_event("forgotten")
        self._on_forgotten(session_id)
        self._unerased = True
        return gone

    async def forget_person(self, person: str, rest: Callable[[], Forgotten] | None = None) -> Forgotten:
        """Delete all of a person: the sessions as `forget` does, then by ``rest``, or the rest of the ledger; return what both deleted."""
        known = await self._call(self._store.sessions.of_person, person)
        names = dict.fromkeys([*known, *(name for name in self._table.ids() if root(owner_of(name)) == person)])
        gone = []
        for name in names:
            with suppress(UnknownRecordError):
                gone.append(await self.forget(name))
        gone.append(await self._call(rest or partial(self._store.sessions.forget_person, person)))
        self._unerased = True
        return Forgotten(*(sum(counts) for counts in zip(*map(astuple, gone), strict=True)))

    async def forget_quiet(self, since: float) -> int:
        """Delete the sessions whose last turn is older than ``since``; return their number."""
        count = 0
        for name in await self._call(self._store.sessions.quiet_since, since, SWEPT_SESSIONS):
            session = self._table.get(name)
            if session is None or (session.in_flight == 0 and session.last_active < since):
                await self.forget(name)
                count += 1
        return count

    async def erase(self) -> bool:
        """Erase the bytes of deleted sessions from disk; return whether none is left."""
        if self._unerased:
            self._unerased = False
            try:
                await asyncio.to_thread(self._store.sessions.erase)
            except BaseException as error:
                self._unerased = True
                if not isinstance(error, LedgerUnavailableError):
                    raise
                logger.warning("%s", error)
                return False
        return True

    def abandon(self, context: TurnContext) -> None:
        """Discard the context of a turn without a reply."""
        self._release(self._in_use(context))

    def undelivered(self, context: TurnContext, turn_id: str) -> None:
        """Record that the client disconnected early, so that asking again counts as a retry."""
        session = self._table.get(context.session_id)
        if session is None:
            return
        if (node := session.node(turn_id)) is not None:
            node.delivered = False
        else:
            session.undelivered.add(turn_id)

    async def sweep(self) -> int:
        """End idle sessions, in memory or not; return their number.

        A sweep checks `SWEPT_SESSIONS` open sessions, and the next sweep continues from there. A session that the
        ledger cannot end is left for a later sweep; after the others, the first error is raised.
        """
        limit = self._clock() - self._idle_seconds
        ended = 0
        errors: list[Exception] = []
        idle, self._swept = await self._call(self._store.sessions.idle, limit, self._swept, SWEPT_SESSIONS)
        for name in idle:
            session = self._table.get(name)
            if session is not None and (session.in_flight or session.last_active > limit):
                continue
            try:
                await self._end(name, "ended_idle")
                ended += 1
            except Exception as error:
                logger.exception("could not end session %s", logged_name(name))
                errors.append(error)
        if errors:
            raise errors[0]
        return ended

    async def close(self) -> None:
        """Finish the queued ledger calls."""
        await self._commits.close()

    async def _end(self, session_id: str, event: str) -> None:
        await self._consequences.reject_regenerated(session_id)
        await self._call(self._store.sessions.end, session_id, self._clock())
        self._on_event(event)
        self._on_pending()

    def _in_use(self, context: TurnContext) -> Session:
        session = self._table.get(context.session_id)
        assert session is not None, f"session {context.session_id} is not in use"
        return session

    def _release(self, session: Session) -> None:
        session.in_flight -= 1
        session.last_active = self._clock()
        for _ in range(self._table.evict()):
            self._on_event("evicted")
