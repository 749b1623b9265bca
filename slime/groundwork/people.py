"""What a person is called where no name may stand: on paths, in requests to engines and in their logs.

A person is an owner without a parent (`openclaw.owners.root`). Guarantees: the same name gives the same mark in every
process and run, and a mark does not tell the name to anybody who cannot guess it. Imports only the standard library.
"""

from __future__ import annotations

import hashlib
import re

MARK = re.compile(r"[0-9a-f]{12}")
"""A person's mark."""
REQUESTED = "person-"
"""How the adapter's name begins in a request that asks for a person's accepted version, whichever that is."""


def mark_of(person: str) -> str:
    """Return the 12 hexadecimal digits that stand for ``person``."""
    return hashlib.blake2b(person.encode(), digest_size=6).hexdigest()


def request_name(person: str) -> str:
    """Return the adapter's name in a request that the accepted version of ``person`` answers."""
    return REQUESTED + mark_of(person)


def requested_mark(name: str) -> str | None:
    """Return whose accepted version a request asks for by the adapter's name; None if it asks for something else."""
    mark = name.removeprefix(REQUESTED)
    return mark if mark != name and MARK.fullmatch(mark) else None
