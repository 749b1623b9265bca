"""Commits what a request says about earlier turns: next states and regenerated replies.

Guarantees: a turn has at most one next state, even from concurrent requests; another one takes its place only until a
step has used it. Work that has begun is finished. If the ledger refuses a next state, the turn waits again in memory, or
keeps the one that it had. Changes the table of `openclaw.sessions.follow`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from groundwork.chat_messages import Message
from openclaw.ledger.exceptions import TransitionError, UnknownRecordError
from openclaw.ledger.group_commit import GroupCommit
from openclaw.ledger.turns import Turns
from openclaw.messages.fingerprint import messages_digest
from openclaw.sessions.nodes import Node
from openclaw.sessions.table import Session, Table
from openclaw.sessions.turn_matching import Due, Relation

logger = logging.getLogger(__name__)

RegeneratedPolicy = Literal["exclude", "negative"]
ANOTHER_ANSWER: Message = {
    "role": "user",
    "content": "(The user did not go on with this answer. They asked for another answer to the same message.)",
}


@dataclass(frozen=True)
class Step:
    """One change of the ledger: its commit, its undoing in memory, and the turn that it gives a next state, if any."""

    commit: Callable[[], Awaitable[bool]]
    undo: Callable[[], None]
    gives: str | None = None


class Consequences:
    """Applies relations; ``regenerated`` decides what happens to a turn whose reply was regenerated."""

    def __init__(
        self,
        table: Table,
        turns: Turns,
        commits: GroupCommit,
        *,
        regenerated: RegeneratedPolicy,
        clock: Callable[[], float],
        on_event: Callable[[str], None],
        on_pending: Callable[[], None],
    ) -> None:
        self._table = table
        self._turns = turns
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
        if relation.kind in ("regeneration", "retry", "branch", "held"):
            self._on_event(relation.kind)
        if relation.unlike:
            self._on_event("unlike")
        steps = [self._give(session, due, self._record_next_state) for due in relation.due]
        steps += [self._give(session, due, self._replace_next_state) for due in relation.replaced]
        for node in relation.went_on:
            node.went_on = True
        steps += [self._mark(node) for node in relation.regenerated]
        if steps:
            return await asyncio.shield(asyncio.ensure_future(self._commit(session, relation, steps)))
        return None

    def _give(self, session: Session, due: Due, commit: Callable[[Due], Awaitable[bool]]) -> Step:
        """Claim a turn in memory; return the step that commits its next state."""
        node = due.node
        before = (node.state, node.next_state, node.followed_by, node.went_on)

        def undo() -> None:
            self._table.set_state(session, node, before[0])
            _, node.next_state, node.followed_by, node.went_on = before

        self._table.set_state(session, node, "followed")
        node.next_state, node.followed_by = messages_digest(due.following), due.followed_by
        node.went_on = due.went_on
        return Step(partial(commit, due), undo, node.turn_id)

    def _mark(self, node: Node) -> Step:
        """Mark a turn as regenerated in memory; return the step that commits it."""

        def undo() -> None:
            node.regenerated = False

        node.regenerated = True
        return Step(partial(self._mark_regenerated, node), undo)

    async def _commit(self, session: Session, relation: Relation, steps: Sequence[Step]) -> str | None:
        """Commit the steps in order; undo in memory what the ledger refuses, and what comes after it."""
        given = None
        for number, step in enumerate(steps):
            try:
                if await step.commit() and given is None:
                    given = step.gives
            except Exception:
                for left in steps[number:]:
                    left.undo()
                raise
        if relation.rewritten and given is not None:
            self._on_event("rewritten")
        if self._regenerated == "negative":
            for node in relation.rejected:
                await self._reject(node.turn_id, session)
        return given

    async def _mark_regenerated(self, node: Node) -> bool:
        await self._call(self._turns.mark_regenerated, node.turn_id)
        return True

    async def _replace_next_state(self, due: Due) -> bool:
        turn_id = due.node.turn_id
        try:
            in_time = await self._call(self._turns.replace_next_state, turn_id, due.following, self._clock())
        except (TransitionError, UnknownRecordError) as error:
            logger.info("turn %s did not get another next state: %s", turn_id, error)
            self._on_event("conflict")
            return False
        if not in_time:
            logger.info("another next state of turn %s comes too late: a step has used its sample", turn_id)
        self._on_event("replaced" if in_time else "late")
        self._on_pending()
        return in_time

    async def _record_next_state(self, due: Due) -> bool:
        try:
            await self._call(self._turns.record_next_state, due.node.turn_id, due.following, self._clock())
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
            await self._call(self._turns.record_next_state, turn_id, [ANOTHER_ANSWER], self._clock(), "regenerated")
        except (TransitionError, UnknownRecordError) as error:
            logger.info("turn %s did not get its next state: %s", turn_id, error)
            return
        self._on_event("rejected")
        self._on_pending()

    async def reject_regenerated(self, session_id: str) -> None:
        """Reject the regenerated turns of an ending session, if such turns are judged."""
        session = self._table.get(session_id)
        if self._regenerated == "negative":
            for turn_id in await self._call(self._turns.regenerated, session_id):
                await self._reject(turn_id, session)
