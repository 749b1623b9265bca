"""Commits what a request says about earlier turns: next states and regenerated replies.

Guarantees: a turn gets at most one next state, even from concurrent requests. Work that has begun is finished. If the
ledger refuses a next state, the turn waits again in memory. Changes the table of `openclaw.sessions.follow`.
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
    """Applies relations; ``regenerated`` decides what happens to a turn whose reply was regenerated."""

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

        Each turn is claimed before the first await, so no second request gives it another next state. The work
        completes even if the request is cancelled.
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
            logger.info("turn %s did not get its next state: %s", due.node.turn_id, error)
            self._on_event("conflict")
            return False
        self._on_event("next_state")
        self._on_pending()
        return True

    async def _reject(self, turn_id: str, session: Session | None) -> None:
        """Give a regenerated turn the regeneration as its next state."""
        node = session.node(turn_id) if session else None
        if session is not None and node is not None:
            self._table.set_state(session, node, "followed")
        try:
            await self._call(self._store.record_next_state, turn_id, [ANOTHER_ANSWER], self._clock(), "regenerated")
        except (TransitionError, UnknownRecordError) as error:
            logger.info("turn %s did not get its next state: %s", turn_id, error)
            return
        self._on_event("rejected")
        self._on_pending()

    async def reject_regenerated(self, session_id: str) -> None:
        """Reject the regenerated turns of an ending session, if such turns are judged."""
        session = self._table.get(session_id)
        if self._regenerated == "negative":
            for turn_id in await self._call(self._store.regenerated_turns, session_id):
                await self._reject(turn_id, session)
