"""Commits what a request says about earlier turns: their next states, and which replies were replaced.

Guarantees: a turn gets one next state, whatever comes at the same time; what was begun is carried through. What the
ledger did not take is open again in memory. Changes the table of sessions, which `openclaw.sessions.follow` owns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Literal

from openclaw.ledger.exceptions import TransitionError, UnknownRecordError
from openclaw.ledger.group_commit import GroupCommit
from openclaw.ledger.records import Message
from openclaw.messages.fingerprint import messages_digest
from openclaw.sessions.store import TurnStore
from openclaw.sessions.table import Session, Table
from openclaw.sessions.turn_matching import Due, Relation

logger = logging.getLogger(__name__)

RegeneratedPolicy = Literal["exclude", "negative"]
ANOTHER_ANSWER: Message = {
    "role": "user",
    "content": "(The user did not go on with this answer. They asked for another answer to the same message.)",
}


class Consequences:
    """Carries relations out; ``regenerated`` says what becomes of a turn whose reply the user had replaced."""

    def __init__(
        self,
        table: Table,
        store: TurnStore,
        commits: GroupCommit,
        *,
        regenerated: RegeneratedPolicy,
        clock: Callable[[], float],
        on_event: Callable[[str], None],
        on_pending: Callable[[], None],
    ) -> None:
        self._table = table
        self._store = store
        self._call = commits.call
        self._regenerated = regenerated
        self._clock = clock
        self._on_event = on_event
        self._on_pending = on_pending

    async def carry_out(self, session: Session, relation: Relation) -> str | None:
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

    async def reject_regenerated(self, session_id: str) -> None:
        """Say of each turn of an ending session whose reply was replaced that it was, when such turns are judged."""
        session = self._table.get(session_id)
        if self._regenerated == "negative":
            for turn_id in await self._call(self._store.regenerated_turns, session_id):
                await self._reject(turn_id, session)
