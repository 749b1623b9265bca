"""Matches a request's messages with earlier turns.

A reply that a request carries back is identified by the ids that we issued with it, otherwise by the whole conversation
up to it. If it has no such id and the conversation before it was
rewritten (compaction, dropped messages, removed context), the reply's own message is enough, but only for the last reply
to the user.

Guarantees: pure functions without side effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from openclaw.ledger.records import Message
from openclaw.messages.classify import answers_own_text, next_state_after
from openclaw.messages.fingerprint import CarriedReply, History, messages_digest
from openclaw.sessions.nodes import Node

RelationKind = Literal["new", "next_state", "regeneration", "retry", "branch"]


@dataclass(frozen=True)
class Due:
    """A turn and its next state."""

    node: Node
    following: list[Message]


@dataclass(frozen=True)
class Relation:
    """What a request means for earlier turns.

    Attributes:
        kind: ``next_state``: it gives one; ``regeneration``: it asks again for an answered request; ``retry``: it repeats
            a failed request; ``branch``: it continues a reply in another way than before; ``new``: none of these.
            due: the turns that get their next state, latest first.
            regenerated: the turns whose reply the user wants regenerated.
            rejected: the regenerated turns that the user passed over for another reply to the same messages.
            rewritten: whether a turn was identified only by its own message.
    """

    kind: RelationKind
    due: list[Due] = field(default_factory=list)
    regenerated: list[Node] = field(default_factory=list)
    rejected: list[Node] = field(default_factory=list)
    rewritten: bool = False


def recognise(history: History, nodes: Sequence[Node]) -> dict[int, Node]:
    """Return the turn of each assistant message that names one or whose whole conversation is known, by position.

    Of several turns with the same conversation, prefer one that waits, was not regenerated and had the same system
    messages. A turn that a message names has no other message.
    """
    found = _named(history, nodes)
    taken = {node.turn_id for node in found.values()}
    known: dict[bytes, list[Node]] = {}
    for node in nodes:
        if node.turn_id not in taken:
            known.setdefault(node.conversation, []).append(node)
    for carried in history.replies:
        if carried.position not in found and carried.conversation in known:
            found[carried.position] = max(
                reversed(known[carried.conversation]),
                key=lambda node: (node.waiting, node.system == history.system, not node.regenerated),
            )
    return found


def _named(history: History, nodes: Sequence[Node]) -> dict[int, Node]:
    """Return the turns that assistant messages name; the last message of a turn counts."""
    turns = {node.turn_id: node for node in nodes}
    return {carried.position: node for carried in history.replies if (node := turns.pop(carried.turn, None))}


def unrecognised(history: History, nodes: Sequence[Node]) -> list[CarriedReply]:
    """Return the replies without a node, or with a node other than the one they name, after the last sure main reply."""
    found = recognise(history, nodes)
    named = _named(history, nodes)
    doubtful = {carried.position for carried in history.replies if carried.turn and carried.position not in named}
    floor = last_main({position: node for position, node in found.items() if position not in doubtful})
    return [
        carried
        for carried in history.replies
        if carried.position > floor and (carried.position not in found or carried.position in doubtful)
    ]


def last_main(found: dict[int, Node]) -> int:
    """Return the position of the last recognised reply of a main turn, or -1."""
    return max((position for position, node in found.items() if node.kind == "main"), default=-1)


def relate(messages: Sequence[Message], history: History, nodes: Sequence[Node], *, retry: bool) -> Relation:
    """Return what a main request means for its session's turns.

    Args:
        messages: of the request.
        history: their digests.
        nodes: the session's turns, oldest first.
        retry: whether the client declares a retry.
    """
    found = recognise(history, nodes)
    side_replies = {position for position, node in found.items() if node.kind == "side"}
    rewritten = _rewritten(messages, history, nodes, found)
    if rewritten is not None:
        found[rewritten[0].position] = rewritten[1]
    due: list[Due] = []
    rejected: list[Node] = []
    for carried in history.replies:
        node = found.get(carried.position)
        if node is None or not node.waiting:
            continue
        if following := next_state_after(messages, carried.position, side_replies):
            due.append(Due(node, following))
            rejected += _passed_over(node, carried, nodes)
    if due:
        return Relation("next_state", due, rejected=rejected, rewritten=rewritten is not None)
    siblings = [
        node
        for node in nodes
        if node.kind == "main"
        and node.state != "excluded"
        and node.system == history.system
        and node.answers(history.asked)
    ]
    if siblings and (retry or not siblings[-1].delivered):
        return Relation("retry")
    if siblings:
        waiting = [node for node in siblings if node.waiting and not node.regenerated]
        return Relation("regeneration", regenerated=waiting)
    position = last_main(found)
    if position >= 0 and found[position].state == "followed":
        following = next_state_after(messages, position, side_replies)
        if following:
            return Relation("retry" if messages_digest(following) == found[position].next_state else "branch")
    return Relation("new")


def _rewritten(
    messages: Sequence[Message], history: History, nodes: Sequence[Node], found: dict[int, Node]
) -> tuple[CarriedReply, Node] | None:
    """Return the last reply to the user and its waiting turn, if only its own message identifies it.

    A turn that answered these same messages does not count: an earlier reply with the same words is not its reply.
    """
    floor = last_main(found)
    for carried in history.replies:
        if carried.position <= floor:
            return None
        if carried.position in found or answers_own_text(messages, carried.position):
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
