"""Follows conversations: finds a request's session, commits next states and records turns.

Guarantees: a main request that carries an earlier reply back gives that reply's turn its next state. What the
conversation went on from takes the place of what it did not (`openclaw.sessions.turn_matching.relate`). A turn is in
the ledger before `finish` returns. Memory is only a cache, bounded by ``max_sessions``: missing sessions are loaded from
the ledger, so a restart, an idle time-out or eviction loses no feedback.

Owns the table of sessions; used from one event loop. Calls the ledger in one thread of its own, in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from groundwork.chat_messages import Message
from openclaw.ledger.exceptions import LedgerUnavailableError
from openclaw.ledger.group_commit import GroupCommit
from openclaw.ledger.records import Turn, TurnKind
from openclaw.ledger.sessions import Forgotten
from openclaw.ledger.store import Ledger
from openclaw.messages.classify import side_kind
from openclaw.messages.fingerprint import History, read_history
from openclaw.messages.side_calls import Asked
from openclaw.owners import LOCAL
from openclaw.sessions.consequences import Consequences, RegeneratedPolicy
from openclaw.sessions.find import SessionFinder
from openclaw.sessions.identity import Origin, is_retry, logged_name, stated_identity
from openclaw.sessions.nodes import node_of_turn
from openclaw.sessions.table import Session, Table
from openclaw.sessions.turn_matching import Relation, RelationKind, relate

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
    """

    session_id: str
    kind: TurnKind
    origin: Origin
    done: bool
    relation: RelationKind
    history: History = field(repr=False)
    next_state_of: str | None = None
    unlike: bool = False


class Sessions:
    """Follows every conversation; see the module's guarantees."""

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
        history: History | None = None,
    ) -> TurnContext:
        """Find the session of a request of ``owner``, and commit the next states that it carries.

        The session stays in memory until `finish` or `abandon` is called with the returned context. ``history`` has the
        digests of the messages, if the caller already knows them. ``tools`` says whether the request
        offers any; known clients offer none in some calls of their own.
        """
        kind: TurnKind = stated_kind or ("side" if side_kind(messages, Asked(tools, headers)) else "main")
        identity = stated_identity(headers, body_session_id, messages, owner)
        history = history or read_history(messages, owner)
        if identity.session_id is None:
            session = await self._finder.by_words(history)
        else:
            session = await self._finder.by_id(identity.session_id)
        try:
            if identity.session_id is not None:
                await self._finder.complete(session, history)
            self._table.touch(session, self._clock())
            relation = Relation("new")
            if kind == "main":
                relation = relate(messages, history, session.nodes, retry=is_retry(headers))
            given = await self._consequences.carry_out(session, relation)
        except BaseException:
            self._release(session)
            raise
        return TurnContext(session.id, kind, identity.origin, done, relation.kind, history, given, relation.unlike)

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
        node.delivered = turn.id not in session.undelivered
        session.undelivered.discard(turn.id)
        self._table.remember(session, node)
        return recorded

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
