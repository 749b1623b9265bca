"""Sessions: which conversation a request belongs to, whose turn it is, and what it says about the turns before.

`identity` reads the id that a request states, `nodes` holds what is kept of a turn, `turn_matching` finds the turns
that a request carries back, `table` is the bounded memory, `follow` puts them together over the ledger.

Guarantees: a next state is committed for the turn it answers before the reply to it begins. May import ledger and
messages.
"""

from __future__ import annotations

from openclaw.sessions.consequences import RegeneratedPolicy
from openclaw.sessions.follow import Sessions, TurnContext
from openclaw.sessions.identity import MAX_SESSION_ID, Identity, is_retry, stated_identity
from openclaw.sessions.store import TurnStore

__all__ = [
    "MAX_SESSION_ID",
    "Identity",
    "RegeneratedPolicy",
    "Sessions",
    "TurnContext",
    "TurnStore",
    "is_retry",
    "stated_identity",
]
