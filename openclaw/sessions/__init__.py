"""Sessions: the conversation of a request, its turn type, and what it says about earlier turns.

`identity` reads a request's session id, `nodes` is the in-memory form of a turn, `turn_matching` finds the turns that a
request carries back, `table` is the bounded memory, and `follow` combines them over the ledger.

Guarantees: a next state is committed before the reply to it begins. May import ledger and messages.
"""

from __future__ import annotations

from openclaw.sessions.consequences import RegeneratedPolicy
from openclaw.sessions.follow import Sessions, TurnContext
from openclaw.sessions.identity import Identity, is_retry, stated_identity

__all__ = [
    "Identity",
    "RegeneratedPolicy",
    "Sessions",
    "TurnContext",
    "is_retry",
    "stated_identity",
]
