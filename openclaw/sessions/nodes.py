"""The in-memory form of a turn: its digests and its state.

Guarantees: a few hundred bytes per turn; `node_of_record` rebuilds it from the ledger. Owned by
`openclaw.sessions.table`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from openclaw.ledger.graph import TurnNode
from openclaw.ledger.records import Turn, TurnKind
from openclaw.messages.fingerprint import History, join, messages_digest, reply_digest, system_digest, trace_digest

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
        calls: whether the reply calls tools, so that the ids of its calls name it.
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
    calls: bool = False

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
        calls="tool_calls" in record.response_message,
    )
