"""The id under which a session is kept: the client's own, unless it looks like a secret.

Guarantees: equal ids give equal results, so a client that sends a key as its session id finds its session again, ends
it and forgets it, while the ledger has only a digest. Pure function.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

from openclaw.ledger.secret_finder import secret_finder

PREFIX = "secret-"
DIGITS = 32


@lru_cache(maxsize=4096)
def kept_id(session_id: str) -> str:
    """Return the id to store for the session id that a client sent."""
    if next(iter(secret_finder()(session_id)), None) is None:
        return session_id
    return PREFIX + sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]
