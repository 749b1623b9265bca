"""Finds the session of a request in memory, or loads it from the ledger.

Guarantees: sessions that left memory by a restart, an idle time-out or eviction are found in the ledger. A returned
session is marked as in use, so it stays in memory. Changes the table of `openclaw.sessions.follow`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from functools import partial

from openclaw.ledger.group_commit import GroupCommit
from openclaw.ledger.sessions import Sessions as StoredSessions
from openclaw.ledger.sessions import TurnNode
from openclaw.messages.fingerprint import CarriedReply, History
from openclaw.owners import stored_id
from openclaw.sessions.nodes import correct_went_on, node_of_record
from openclaw.sessions.table import NODES_PER_SESSION, PLAIN_PREFIX, Match, Session, Table
from openclaw.sessions.turn_matching import unrecognised

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
