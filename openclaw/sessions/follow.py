"""Sessions: which conversation a request belongs to, whose turn it is, and what it says about the turns before.

Guarantees: a main request that carries an earlier reply back gives that reply's turn its next state, once; a turn is in
the ledger before `finish` returns. Nothing is kept only here: a session or conversation that is not in memory is read
back from the ledger, so that a restart, an idle time-out or eviction loses no feedback. Memory is bounded by
``max_sessions``.

Owns the table of sessions; used from one event loop. The ledger is called in one thread of its own, in order.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from openclaw.classify import side_kind
from openclaw.fingerprint import History, messages_digest, read_history
from openclaw.ledger.exceptions import LedgerUnavailableError, TransitionError, UnknownRecordError
from openclaw.ledger.forget import Forgotten
from openclaw.ledger.graph import TurnNode
from openclaw.ledger.group_commit import GroupCommit
from openclaw.ledger.records import Message, Turn, TurnKind
from openclaw.sessions.identity import Origin, is_retry, logged_name, stated_identity
from openclaw.sessions.nodes import node_of_record, node_of_turn
from openclaw.sessions.relation import Due, Relation, RelationKind, relate, unrecognised
from openclaw.sessions.store import TurnStore
from openclaw.sessions.table import NODES_PER_SESSION, PLAIN_PREFIX, Session, Table

logger = logging.getLogger(__name__)

RegeneratedPolicy = Literal["exclude", "negative"]
ANOTHER_ANSWER: Message = {
    "role": "user",
    "content": "(The user did not go on with this answer. They asked for another answer to the same message.)",
}
LOADED_NODES = NODES_PER_SESSION // 2
LOOKED_UP_REPLIES = 64
LOOKED_UP_TURNS = 8
SWEPT_SESSIONS = 500


@dataclass(frozen=True)
class TurnContext:
    """What is known of a turn before it is answered.

    Attributes:
        session_id: its session.
        kind: whose turn it is.
        origin: how the session was found.
        done: whether the session ends with this turn.
        relation: what the request means for the turns before it.
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


class Sessions:
    """Follows every conversation; see the module's guarantees."""

    def __init__(
        self,
        store: TurnStore,
        *,
        idle_seconds: float,
        max_sessions: int,
        clock: Callable[[], float],
        regenerated: RegeneratedPolicy = "exclude",
        on_event: Callable[[str], None] = lambda name: None,
        on_pending: Callable[[], None] = lambda: None,
    ) -> None:
        """Bind the sessions to their ledger.

        Args:
            store: the ledger.
            idle_seconds: a session without a request for this long ends.
            max_sessions: most sessions in memory.
            clock: seconds since the epoch.
            regenerated: what becomes of a turn whose reply the user had replaced: never trained, or judged by that.
            on_event: called with the name of what happened: ``next_state``, ``regeneration``, ``rejected``, ``retry``,
                ``branch``, ``rewritten``, ``conflict``, ``revived``, ``ended_idle``, ``ended_done``, ``evicted``,
                ``forgotten``.
            on_pending: called when a turn became pending or a session ended.
        """
        self._store = store
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._regenerated = regenerated
        self._on_event = on_event
        self._on_pending = on_pending
        self._table = Table(max_sessions)
        self._swept = ""
        self._unerased = False
        self._commits = GroupCommit(store)
        self._call = self._commits.call

    def __len__(self) -> int:
        return len(self._table)

    def sizes(self) -> dict[str, int]:
        """Return how much memory holds, see `Table.sizes`."""
        return self._table.sizes()

    async def begin(
        self,
        headers: Mapping[str, str],
        messages: Sequence[Message],
        *,
        body_session_id: str | None = None,
        stated_kind: TurnKind | None = None,
        done: bool = False,
    ) -> TurnContext:
        """Find the session of a request, and commit the next states that it carries.

        The session stays in memory until `finish` or `abandon` is called with what this returns.
        """
        kind: TurnKind = stated_kind or ("side" if side_kind(messages) else "main")
        identity = stated_identity(headers, body_session_id, messages)
        history = read_history(messages)
        if identity.session_id is None:
            session = await self._find_conversation(history)
        else:
            session = await self._open(identity.session_id)
        try:
            if identity.session_id is not None:
                await self._complete(session, history)
            self._table.touch(session, self._clock())
            relation = Relation("new")
            if kind == "main":
                relation = relate(messages, history, session.nodes, retry=is_retry(headers))
            given = await self._carry_out(session, relation)
        except BaseException:
            self._release(session)
            raise
        return TurnContext(session.id, kind, identity.origin, done, relation.kind, history, given)

    async def finish(self, context: TurnContext, turn: Turn) -> Turn:
        """Commit a turn and return it with its index; from now on it waits for its next state."""
        session = self._in_use(context)
        try:
            turn = await self.record(context, turn)
            if context.done:
                await self._end(session.id, "ended_done")
        finally:
            self._release(session)
        return turn

    async def record(self, context: TurnContext, turn: Turn) -> Turn:
        """Commit another reply to the same request, before its `finish`; it waits for its next state like the first."""
        session = self._in_use(context)
        node = node_of_turn(turn, context.history)
        turn = replace(turn, index=session.turns, conversation=node.conversation)
        session.turns += 1
        recorded = await self._call(self._store.record_turn, turn)
        if recorded is None:
            self._on_event("forgotten")
            return turn
        if recorded.state == "excluded":
            node.state = "excluded"
        node.delivered = turn.id not in session.undelivered
        session.undelivered.discard(turn.id)
        self._table.remember(session, node)
        return turn

    async def end(self, session_id: str) -> bool:
        """End a session because its client says so; return whether it is known. A further request goes on with it."""
        turns, _ = await self._call(self._store.session_nodes, session_id, 1)
        if turns == 0:
            return self._table.get(session_id) is not None
        await self._end(session_id, "ended_done")
        return True

    async def forget(self, session_id: str) -> Forgotten:
        """Delete a session, in memory and in the ledger; replies that are under way are not recorded.

        Raises:
            UnknownRecordError: when there is none.
        """
        session = self._table.get(session_id)
        under_way = session is not None and session.in_flight > 0
        gone = await self._call(partial(self._store.forget_session, session_id, under_way=under_way))
        session = self._table.get(session_id)
        if session is not None:
            self._table.clear(session)
        self._on_event("forgotten")
        self._unerased = True
        return gone

    async def forget_quiet(self, since: float) -> int:
        """Forget the sessions whose last turn came before ``since``; return how many."""
        count = 0
        for name in await self._call(self._store.sessions_quiet_since, since, SWEPT_SESSIONS):
            session = self._table.get(name)
            if session is None or (session.in_flight == 0 and session.last_active < since):
                await self.forget(name)
                count += 1
        return count

    async def erase(self) -> bool:
        """Remove the bytes of forgotten sessions from disk, if there are any; return whether none is left."""
        if self._unerased:
            self._unerased = False
            try:
                await asyncio.to_thread(self._store.erase)
            except BaseException as error:
                self._unerased = True
                if not isinstance(error, LedgerUnavailableError):
                    raise
                logger.warning("%s", error)
                return False
        return True

    def abandon(self, context: TurnContext) -> None:
        """Forget a turn that was never answered."""
        self._release(self._in_use(context))

    def undelivered(self, context: TurnContext, turn_id: str) -> None:
        """Note that the client went away before it had the whole reply: when it asks again, that is a retry."""
        session = self._table.get(context.session_id)
        if session is None:
            return
        if (node := session.node(turn_id)) is not None:
            node.delivered = False
        else:
            session.undelivered.add(turn_id)

    async def sweep(self) -> int:
        """End sessions that were idle for too long, in memory or not; return how many.

        A sweep looks at `SWEPT_SESSIONS` that have not ended, the next one goes on from there.
        One that the ledger cannot end is left for the next sweep, after the others; the first error is then raised.
        """
        limit = self._clock() - self._idle_seconds
        ended = 0
        errors: list[Exception] = []
        idle, self._swept = await self._call(self._store.idle_sessions, limit, self._swept, SWEPT_SESSIONS)
        for name in idle:
            session = self._table.get(name)
            if session is not None and (session.in_flight or session.last_active > limit):
                continue
            try:
                await self._end(name, "ended_idle")
                ended += 1
            except Exception as error:
                logger.exception("session %s could not be ended", logged_name(name))
                errors.append(error)
        if errors:
            raise errors[0]
        return ended

    async def close(self) -> None:
        """Let the ledger's thread finish what it was given."""
        await self._commits.close()

    async def _find_conversation(self, history: History) -> Session:
        """Return the session that a request without an id goes on with, or a new one, in use.

        When memory knows the last reply there is no wait before `begin` relates the request, so that of two requests
        with the same words each finds its own session.
        """
        session, position = self._table.find(history)
        unknown = [carried.conversation for carried in history.replies if carried.position > position]
        if unknown:
            records = await self._call(
                partial(self._store.conversation_nodes, session_prefix=PLAIN_PREFIX),
                unknown[:LOOKED_UP_REPLIES],
                LOOKED_UP_TURNS,
            )
            opened: list[Session] = []
            try:
                for name in dict.fromkeys(record.session_id for record in records):
                    opened.append(await self._open(name))
                self._merge(records)
                session, _ = self._table.find(history)
                return self._use(session or self._table.find_rewritten(history))
            finally:
                for other in opened:
                    other.in_flight -= 1
        return self._use(session)

    def _use(self, session: Session | None) -> Session:
        """Return a session, or a new one, in use."""
        if session is None:
            session = Session(f"{PLAIN_PREFIX}{uuid.uuid4().hex[:16]}", self._clock())
            self._table.add(session)
        session.in_flight += 1
        return session

    async def _open(self, session_id: str) -> Session:
        """Return a session by its id, read back from the ledger when it is not in memory, in use."""
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
            session.turns, records = await self._call(self._store.session_nodes, session.id, LOADED_NODES)
        except BaseException:
            self._table.forget(session)
            raise
        finally:
            session.loading = None
        for record in records:
            self._table.remember(session, node_of_record(record))
        if any(node.waiting for node in session.nodes):
            self._on_event("revived")

    async def _complete(self, session: Session, history: History) -> None:
        """Read back the older turns of a session that a request carries and memory does not hold."""
        if session.turns <= len(session.nodes):
            return
        if unknown := unrecognised(history, session.nodes):
            self._merge(
                await self._call(
                    partial(self._store.conversation_nodes, session_id=session.id),
                    unknown[:LOOKED_UP_REPLIES],
                    LOOKED_UP_TURNS,
                )
            )

    def _merge(self, records: Sequence[TurnNode]) -> None:
        """Keep turns that were read back, unless memory holds them already."""
        for record in records:
            session = self._table.get(record.session_id)
            if session is not None and session.node(record.id) is None:
                self._table.remember(session, node_of_record(record))

    async def _carry_out(self, session: Session, relation: Relation) -> str | None:
        """Commit what a request says about earlier turns; return the turn that got its next state, or None.

        Each turn is taken before the first wait, so that no second request gives it another next state; what was begun
        is carried through even when the request is cancelled.
        """
        if relation.kind in ("regeneration", "retry", "branch"):
            self._on_event(relation.kind)
        for due in relation.due:
            self._table.set_state(session, due.node, "followed")
            due.node.next_state = messages_digest(due.following)
        for node in relation.regenerated:
            node.regenerated = True
        if relation.due or relation.regenerated:
            return await asyncio.shield(asyncio.ensure_future(self._commit(session, relation)))
        return None

    async def _commit(self, session: Session, relation: Relation) -> str | None:
        given = None
        for number, due in enumerate(relation.due):
            try:
                if await self._record_next_state(due) and given is None:
                    given = due.node.turn_id
            except Exception:
                for left in relation.due[number:]:
                    self._table.set_state(session, left.node, "waiting")
                raise
        if relation.rewritten and given is not None:
            self._on_event("rewritten")
        for number, node in enumerate(relation.regenerated):
            try:
                await self._call(self._store.mark_regenerated, node.turn_id)
            except Exception:
                for left in relation.regenerated[number:]:
                    left.regenerated = False
                raise
        if self._regenerated == "negative":
            for node in relation.rejected:
                await self._reject(node.turn_id, session)
        return given

    async def _record_next_state(self, due: Due) -> bool:
        try:
            await self._call(self._store.record_next_state, due.node.turn_id, due.following, self._clock())
        except (TransitionError, UnknownRecordError) as error:
            logger.info("turn %s takes no next state: %s", due.node.turn_id, error)
            self._on_event("conflict")
            return False
        self._on_event("next_state")
        self._on_pending()
        return True

    async def _reject(self, turn_id: str, session: Session | None) -> None:
        """Give a turn, whose reply the user had replaced, that as its next state."""
        node = session.node(turn_id) if session else None
        if session is not None and node is not None:
            self._table.set_state(session, node, "followed")
        try:
            await self._call(self._store.record_next_state, turn_id, [ANOTHER_ANSWER], self._clock(), "regenerated")
        except (TransitionError, UnknownRecordError) as error:
            logger.info("turn %s takes no next state: %s", turn_id, error)
            return
        self._on_event("rejected")
        self._on_pending()

    async def _end(self, session_id: str, event: str) -> None:
        session = self._table.get(session_id)
        if self._regenerated == "negative":
            for turn_id in await self._call(self._store.regenerated_turns, session_id):
                await self._reject(turn_id, session)
        await self._call(self._store.end_session, session_id, self._clock())
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
