"""Secret keys under which an engine keeps the cached prefixes of each owner apart.

An engine reuses the computed prefix of an earlier prompt, and both the number of cached tokens and the time to the first
token tell how long that prefix was. A request with a key finds only what requests with the same key left there.

Guarantees: two owners never have the same key; nobody can guess one, because keys are random and leave this process for
the engine only. `renew` makes everything that an owner's requests left in the cache unreachable. Owns the keys; used from
one event loop. At most `MOST_OWNERS` owners have one at a time. Who loses it gets a new one, which costs one cold prompt.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict

CACHE_KEY = "extra_key"
"""The field of `/generate`."""
MOST_OWNERS = 1 << 14


def new_cache_key() -> str:
    """Return a key that no other request has."""
    return secrets.token_hex(16)


class CacheKeys:
    """The keys of one client of an engine, by owner (`openclaw.owners`); None stands for the runtime itself."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str | None, str] = OrderedDict()

    def of(self, owner: str | None) -> str:
        """Return the key of what ``owner`` asks."""
        key = self._keys.get(owner)
        if key is None:
            key = self._keys[owner] = new_cache_key()
            if len(self._keys) > MOST_OWNERS:
                self._keys.popitem(last=False)
        self._keys.move_to_end(owner)
        return key

    def renew(self, owner: str) -> None:
        """Give ``owner`` another key from the next request on."""
        self._keys.pop(owner, None)
