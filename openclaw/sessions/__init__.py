"""Sessions: the conversation of a request, its turn type, and what it says about earlier turns.

`table` is the bounded memory, `earlier_turns` finds the turns that a request carries back and commits what it says of
them, `manner` tells a client's own words from a user's, and `follow` combines them over the ledger.

Guarantees: a next state is committed before the reply to it begins. May import ledger and messages.
"""

from __future__ import annotations

from openclaw.sessions.earlier_turns import RegeneratedPolicy
from openclaw.sessions.follow import SESSION_HEADERS, Identity, Place, Sessions, TurnContext, is_retry, stated_identity

__all__ = [
    "SESSION_HEADERS",
    "Identity",
    "Place",
    "RegeneratedPolicy",
    "Sessions",
    "TurnContext",
    "is_retry",
    "stated_identity",
]
