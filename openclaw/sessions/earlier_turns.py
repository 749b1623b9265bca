"""What a request says about earlier turns: which of them it carries back, and what is committed for them.

A reply that a request carries back is identified by the ids that we issued with it, otherwise by the whole conversation
up to it. If it has no such id and the conversation before it was rewritten (compaction, dropped messages, removed
context), the reply's own message is enough, but only for the last reply to the user. `relate` is pure.

`Consequences` commits next states and regenerated replies. A turn has at most one next state, even from concurrent
requests; another one takes its place only until a step has used it. Work that has begun is finished. If the ledger refuses
a next state, the turn waits again in memory, or keeps the one that it had. Changes the table of
`openclaw.sessions.follow`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Literal

from groundwork.chat_messages import Message
from openclaw.ledger.exceptions import TransitionError, UnknownRecordError
from openclaw.ledger.group_commit import GroupCommit
from openclaw.ledger.records import TurnKind
from openclaw.ledger.turns import Turns
from openclaw.messages.classify import answers_to_own_texts, following, reads_like_own_request
from openclaw.messages.fingerprint import CarriedReply, History, messages_digest
from openclaw.owners import owner_of
from openclaw.sessions.manner import Manner, PassedOver
from openclaw.sessions.table import Node, Session, Table

RelationKind = Literal["new", "next_state", "replaced", "held", "regeneration", "retry", "branch"]


@dataclass(frozen=True)
class Due:
    """A turn and its next state.

    Attributes:
        node: the turn.
        following: the next state.
        followed_by: digest of the conversation up to and with it.
        went_on: whether the conversation went on from the reply to it.
    """

    node: Node
    following: list[Message]
    followed_by: bytes
    went_on: bool


@dataclass(frozen=True)
class Relation:
    """What a request means for earlier turns.

    Attributes:
        kind: ``next_state``: it gives one; ``replaced``: it gives another one than before; ``held``: it may be the
            client's own, so its words are one only if the conversation goes on from its reply; ``regeneration``: it asks again
            for an answered request; ``retry``: it repeats a failed request; ``branch``: it continues a reply in another
            way than the conversation that went on; ``new``: none of these.
        due: the turns that get their next state, latest first.
        replaced: the turns that get another next state than before.
        went_on: the turns whose next state the request confirms, because the conversation went on from the reply to it.
        regenerated: the turns whose reply the user wants regenerated.
        rejected: the regenerated turns that the user passed over for another reply to the same messages.
        rewritten: whether a turn was identified only by its own message.
        unlike: whether it carries another reply where one of ours waits, so that what follows is nobody's next state.
    """

    kind: RelationKind
    due: list[Due] = field(default_factory=list)
    replaced: list[Due] = field(default_factory=list)
    went_on: list[Node] = field(default_factory=list)
    regenerated: list[Node] = field(default_factory=list)
    rejected: list[Node] = field(default_factory=list)
    rewritten: bool = False
    unlike: bool = False


def recognise(history: History, nodes: Sequence[Node]) -> dict[int, Node]:
    """Return the turn of each assistant message that names one or whose whole conversation is known, by position.

    Of several turns with the same conversation, prefer the same reply to the letter, then one that waits, was not
    regenerated and had the same system messages. A turn that a message names has no other message.
    """
    match = _named(history, nodes)
    taken = {node.turn_id for node in match.values()}
    known: dict[bytes, list[Node]] = {}
    for node in nodes:
        if node.turn_id not in taken:
            known.setdefault(node.conversation, []).append(node)
    for carried in history.replies:
        if carried.position not in match and carried.conversation in known:
            match[carried.position] = max(
                reversed(known[carried.conversation]),
                key=lambda node: (
                    node.exact == carried.exact,
                    node.waiting,
                    node.system == history.system,
                    not node.regenerated,
                ),
            )
    return match


def _named(history: History, nodes: Sequence[Node]) -> dict[int, Node]:
    """Return the turns that assistant messages name; the last message of a turn counts."""
    turns = {node.turn_id: node for node in nodes}
    return {carried.position: node for carried in history.replies if (node := turns.pop(carried.turn, None))}


def unrecognised(history: History, nodes: Sequence[Node]) -> list[CarriedReply]:
    """Return the replies without a node, or with a node other than the one they name, after the last sure main reply."""
    result = recognise(history, nodes)
    named = _named(history, nodes)
    doubtful = {carried.position for carried in history.replies if carried.turn and carried.position not in named}
    floor = last_main({position: node for position, node in result.items() if position not in doubtful})
    return [
        carried
        for carried in history.replies
        if carried.position > floor and (carried.position not in result or carried.position in doubtful)
    ]


def last_main(found: dict[int, Node]) -> int:
    """Return the position of the last recognised reply of a main turn, or -1."""
    return max((position for position, node in found.items() if node.kind == "main"), default=-1)


@dataclass(frozen=True)
class Asking:
    """How a main request asks.

    Attributes:
        manner: what else it says besides its words.
        passed_over: the words that conversations went on without.
        retry: whether the client declares a retry.
    """

    manner: Manner
    passed_over: PassedOver
    retry: bool = False


def relate(messages: Sequence[Message], history: History, nodes: Sequence[Node], asking: Asking) -> Relation:
    """Return what a main request means for its session's turns.

    The next state of a reply is what followed it in the conversation that went on, the last one of several. Until one went
    on, it is what followed in the newest request.

    Args:
        messages: of the request.
        history: their digests.
        nodes: the session's turns, oldest first.
        asking: how it asks. A client that got a stream and asks for the same without one could not read it.
    """
    result = recognise(history, nodes)
    rewritten = _rewritten(messages, history, nodes, result)
    if rewritten is not None:
        result[rewritten[0].position] = rewritten[1]
    relation = _what_followed(messages, history, nodes, result, asking)
    if relation.due:
        return replace(relation, kind="next_state", rewritten=rewritten is not None)
    siblings = [node for node in answers_to(history, nodes, "main") if node.state != "excluded"]
    if siblings and (asking.retry or not siblings[-1].delivered or _asks_without_stream(siblings[-1], asking)):
        return replace(relation, kind="retry")
    if siblings:
        waiting = [node for node in siblings if node.waiting and not node.regenerated]
        return replace(relation, kind="regeneration", regenerated=waiting)
    return replace(relation, unlike=relation.kind == "new" and _is_unlike(messages, history, nodes, result))


def answers_to(history: History, nodes: Sequence[Node], kind: TurnKind) -> list[Node]:
    """Return the turns of a kind that answered just this conversation, under the same instructions."""
    return [
        node for node in nodes if node.kind == kind and node.system == history.system and node.answers(history.asked)
    ]


def _asks_without_stream(node: Node, asking: Asking) -> bool:
    return node.manner is not None and node.manner.streamed and not asking.manner.streamed


def relate_own(messages: Sequence[Message], history: History, nodes: Sequence[Node]) -> Relation:
    """Return what a client's own request means for its session's turns: the results of tools before its words.

    A client that compacts in the middle of a task sends the results of the last calls nowhere else.
    """
    found = recognise(history, nodes)
    carried = next(iter(history.replies), None)
    node = found.get(carried.position) if carried else None
    if carried is None or node is None or node.kind != "main":
        return Relation("new")
    link = _results(Due(node, following(messages, carried.position).messages, history.asked, went_on=False), carried)
    return Relation("next_state", [link]) if link is not None and node.waiting else Relation("new")


def last_reply(messages: Sequence[Message], history: History, nodes: Sequence[Node]) -> Node | None:
    """Return the turn of the last reply to the user that a request carries, or None if it is not known."""
    found = recognise(history, nodes)
    if (rewritten := _rewritten(messages, history, nodes, found)) is not None:
        found[rewritten[0].position] = rewritten[1]
    own = answers_to_own_texts(messages)
    for carried in history.replies:
        node = found.get(carried.position)
        if carried.position not in own and (node is None or node.kind == "main"):
            return node
    return None


def _what_followed(
    messages: Sequence[Message], history: History, nodes: Sequence[Node], found: dict[int, Node], asking: Asking
) -> Relation:
    """Return what the request says about the recognised turns; ``kind`` is that of the last one's continuation."""
    side_replies = {position for position, node in found.items() if node.kind == "side"}
    carried_at = {carried.position: carried for carried in history.replies}
    gone_on = {carried.before for carried in history.replies}
    relation = Relation("new")
    for carried in history.replies:
        node = found.get(carried.position)
        if node is None or node.state == "excluded":
            continue
        if node.state == "followed" and node.followed_by in gone_on:
            relation.went_on.append(node)
            continue
        after = following(messages, carried.position, side_replies)
        if not after.messages:
            continue
        if after.end is None:
            link = Due(node, after.messages, history.asked, went_on=False)
            kind = _open_kind(link, history.owner, asking)
            if kind == "held" and node.waiting and (results := _results(link, carried)):
                link, kind = results, "next_state"
            relation = replace(relation, kind=kind)
        else:
            link = Due(node, after.messages, carried_at[after.end].before, went_on=True)
            kind = _ended_kind(link, carried_at[after.end], found.get(after.end))
        if kind == "next_state":
            relation.due.append(link)
            relation.rejected.extend(_passed_over(node, carried, nodes))
        elif kind == "replaced":
            relation.replaced.append(link)
        elif kind == "retry" and link.went_on:
            relation.went_on.append(node)
    return relation


def _open_kind(link: Due, owner: str, asking: Asking) -> RelationKind:
    """Return what the end of a request means for the last reply before it."""
    node = link.node
    if not node.waiting and (link.followed_by == node.followed_by or _same(link)):
        return "retry"
    if _may_be_own(link, owner, asking):
        return "held"
    if node.waiting:
        return "next_state"
    return "branch" if node.went_on else "replaced"


def _may_be_own(link: Due, owner: str, asking: Asking) -> bool:
    """Return whether the words at the end of a request may be the client's own."""
    if link.following[-1].get("role") != "user":
        return False
    usual = link.node.manner
    return (
        reads_like_own_request(link.following)
        or (usual is not None and asking.manner.departs_from(usual))
        or asking.passed_over.has(owner, messages_digest(link.following), link.following)
    )


def _results(link: Due, carried: CarriedReply) -> Due | None:
    """Return a link with only the results of tools that stand before a user's words, or None without both."""
    results = list(takewhile(lambda message: message.get("role") == "tool", link.following))
    if not results or len(results) == len(link.following):
        return None
    return Due(link.node, results, messages_digest(results, carried.conversation), went_on=False)


def _ended_kind(link: Due, reply: CarriedReply, turn: Node | None) -> RelationKind:
    """Return what an earlier exchange of a request means for the reply before it.

    Another next state than before counts only if ``reply``, which ended the exchange, is that of a ``turn`` in this very
    conversation. Otherwise the client may have rewritten the exchange, for example shortened a tool's result.
    """
    if link.node.waiting:
        return "next_state"
    if _same(link):
        return "retry"
    return "replaced" if turn is not None and turn.conversation == reply.conversation else "new"


def _same(link: Due) -> bool:
    return messages_digest(link.following) == link.node.next_state


def _is_unlike(messages: Sequence[Message], history: History, nodes: Sequence[Node], found: dict[int, Node]) -> bool:
    """Return whether the last reply to the user is none of ours, in the place of one that waits."""
    if not any(node.waiting for node in nodes):
        return False
    own = answers_to_own_texts(messages)
    for carried in history.replies:
        if carried.position in own:
            continue
        return carried.position not in found and any(
            node.waiting and not node.regenerated and node.answers(carried.before) for node in nodes
        )
    return False


def _rewritten(
    messages: Sequence[Message], history: History, nodes: Sequence[Node], found: dict[int, Node]
) -> tuple[CarriedReply, Node] | None:
    """Return the last reply to the user and its waiting turn, if only its own message identifies it.

    A turn that answered these same messages does not count: an earlier reply with the same words is not its reply.
    """
    if not any(node.waiting for node in nodes):
        return None
    floor, own = last_main(found), answers_to_own_texts(messages)
    for carried in history.replies:
        if carried.position <= floor:
            return None
        if carried.position in found or carried.position in own:
            continue
        for node in reversed(nodes):
            if node.waiting and node.reply == carried.reply and not node.answers(history.asked):
                return carried, node
        return None
    return None


def _passed_over(chosen: Node, carried: CarriedReply, nodes: Sequence[Node]) -> list[Node]:
    return [
        node
        for node in nodes
        if node.regenerated and node.waiting and node.reply != chosen.reply and node.answers(carried.before)
    ]


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
        self.passed_over = PassedOver()
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
        self._remember_words(owner_of(session.id), relation)
        steps = [self._give(session, due, self._record_next_state) for due in relation.due]
        steps += [self._give(session, due, self._replace_next_state) for due in relation.replaced]
        for node in relation.went_on:
            node.went_on = True
        steps += [self._mark(node) for node in relation.regenerated]
        if steps:
            return await asyncio.shield(asyncio.ensure_future(self._commit(session, relation, steps)))
        return None

    def _remember_words(self, owner: str, relation: Relation) -> None:
        """Remember what a conversation went on without, and forget what one went on from; before turns are claimed."""
        for due in relation.replaced:
            if due.node.next_state:
                self.passed_over.add(owner, due.node.next_state)
        for due in relation.due + relation.replaced:
            if due.went_on:
                self.passed_over.discard(owner, messages_digest(due.following))
        for node in relation.went_on:
            self.passed_over.discard(owner, node.next_state)

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
