"""A name for a conversation that a router can tell engines apart by.

Guarantee: pure; all turns of a conversation have the same name, which is known before its session is found and says nothing about
its text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import orjson

KEY_BYTES = 12


def routing_key(messages: Sequence[Any]) -> str:
    """Return a digest of the messages up to the first of the user: what every later turn begins with."""
    first = next((n for n, message in enumerate(messages) if message.get("role") == "user"), len(messages) - 1)
    return hashlib.blake2b(orjson.dumps(list(messages[: first + 1])), digest_size=KEY_BYTES).hexdigest()
