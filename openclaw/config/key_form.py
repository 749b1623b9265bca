"""Which texts cannot be keys: no client can send them as they stand, or they only look like what was meant.

Pure functions; the answers never contain the text.
"""

from __future__ import annotations

import re

A_DIGEST = re.compile(r"(?:sha-?\d+|md5|blake2\w*|bcrypt|scrypt|argon2\w*)[:=$-]|\$\w+\$", re.IGNORECASE)
"""How a digest begins; taken as a key, it would let in whoever has read it."""
SENT = re.compile(r"[!-~]+")
"""What a header carries as it is: visible ASCII without spaces."""


def key_problem(key: str) -> str | None:
    """Return why a key cannot be meant as it is written, or None."""
    if any(letter.isspace() for letter in key):
        return "has white space in it"
    if key[0] in "'\"" or key[-1] in "'\"":
        return "has quotes around it"
    if A_DIGEST.match(key):
        return "is a digest"
    if not SENT.fullmatch(key):
        return "has other characters than visible ASCII"
    return None
