"""The in-memory form of a turn: its digests and its state.

Guarantees: a few hundred bytes per turn; `node_of_record` rebuilds it from the ledger. Owned by
`openclaw.sessions.table`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from openclaw.ledger.records import Turn, TurnKind
from openclaw.ledger.sessions import TurnNode
from openclaw.messages.fingerprint import (
    History,
    exact_hash,
    join,
    messages_digest,
    reply_digest,
    system_digest,
    trace_digest,
)

NodeState = Literal["waiting", "followed", "excluded"]
OPEN_STATES = ("waiting", "ended")


@dataclass(slots=True, eq=False)
class Node:
    """A turn of the message graph.

    Attributes:
        turn_id: the turn.
        kind: ``main`` or ``side``.
        state: ``waiting`` for a next state, ``followed`` by one, or ``excluded`` from training.
        conversation: digest of the conversation up to and with the reply.
        reply: digest of the reply.
        system: digest of the system messages.
        trace: see `openclaw.messages.fingerprint.trace_digest`; empty for a turn loaded from the ledger.
        regenerated: whether the user asked for another reply to the same messages.
        delivered: whether the client got the whole reply, as far as known.
        next_state: digest of the next state, empty without words of the user.
        followed_by: digest of the conversation up to and with the next state.
        went_on: whether the conversation went on from the reply to the next state.
        calls: whether the reply calls tools, so that the ids of its calls name it.
        exact: hash of the reply's content as it stands, see `openclaw.messages.fingerprint.exact_hash`.
    """

    turn_id: str
    kind: TurnKind
    state: NodeState
    conversation: bytes
    reply: bytes
    system: bytes
    trace: bytes = b""
    regenerated: bool = False
    delivered: bool = True
    next_state: bytes = b""
    followed_by: bytes = b""
    went_on: bool = False
    calls: bool = False
    exact: int = 0

    @property
    def waiting(self) -> bool:
        """Whether it can still get a next state."""
        return self.state == "waiting"

    def answers(self, asked: bytes) -> bool:
        """Return whether the turn replied to the conversation with the digest ``asked``."""
        return join(asked, self.reply) == self.conversation


def node_of_turn(turn: Turn, history: History) -> Node:
    """Return the node of a newly recorded turn, a reply to ``history``."""
    reply = reply_digest(turn.response_message)
    excluded = turn.kind == "side" or turn.reason is not None or turn.finish_reason == "abort"
    return Node(
        turn_id=turn.id,
        kind=turn.kind,
        state="excluded" if excluded else "waiting",
        conversation=join(history.asked, reply),
        reply=reply,
        system=history.system,
        trace=trace_digest(history.last, turn.response_message, reply, history.owner),
        calls="tool_calls" in turn.response_message,
        exact=exact_hash(turn.response_message),
    )


def node_of_record(record: TurnNode) -> Node:
    """Return the node of a turn in the ledger."""
    state: NodeState = "excluded" if record.state == "excluded" else "followed"
    if record.state in OPEN_STATES:
        state = "waiting"
    said = record.next_state if record.signal != "regenerated" else None
    return Node(
        turn_id=record.id,
        kind=record.kind,
        state=state,
        conversation=record.conversation,
        reply=reply_digest(record.response_message),
        system=system_digest(record.first_message),
        regenerated=record.signal == "regenerated",
        next_state=messages_digest(said) if said else b"",
        followed_by=messages_digest(said, record.conversation) if said else b"",
        went_on=bool(said),
        calls="tool_calls" in record.response_message,
        exact=exact_hash(record.response_message),
    )


def correct_went_on(loaded: Iterable[Node], nodes: Sequence[Node]) -> None:
    """Find out which conversations of ``loaded`` turns stopped after the next state, as far as ``nodes`` shows it.

    The ledger does not say it, so a next state counts as gone on from unless there is a reply to it that has none.
    """
    for node in loaded:
        replies = [other for other in nodes if node.followed_by and other.answers(node.followed_by)]
        if replies:
            node.went_on = any(reply.state == "followed" for reply in replies)
