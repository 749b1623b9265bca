"""The key that clients send: ``Authorization: Bearer KEY``.

Guarantees: compared in constant time; never logged. Without a configured key every request is let in (the
configuration allows that on loopback only).
"""

from __future__ import annotations

import hmac

from openclaw.gateway.errors import ApiError


class Keyring:
    """Knows the key; immutable."""

    def __init__(self, key: str | None) -> None:
        self._key = key.encode() if key else None

    def check(self, authorization: str | None) -> None:
        """Raise the 401 unless the ``Authorization`` header holds the key."""
        if self._key is None:
            return
        scheme, _, sent = (authorization or "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(sent.strip().encode(), self._key):
            return
        raise ApiError(
            401, "a key is needed: send 'Authorization: Bearer KEY' with the server's key", code="invalid_api_key"
        )
