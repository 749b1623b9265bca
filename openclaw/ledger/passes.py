"""The ids of sessions and turns in a run that goes through its logs several times.

Guarantees: the first pass keeps an id, and pass N adds ``~N`` to it. A session counts as one of a further pass only if the
program itself named its turns so; a client's session ``x~2`` is a session of its own. Pure functions.
"""

from __future__ import annotations

from openclaw.ledger.opinion import choice_of

PASS = "~"
"""What the ids of sessions and turns of a further pass have before its number."""
OF_LOG = "log-"
"""How the id of a turn begins that came as text from a log."""


def suffixed(name: str, number: int) -> str:
    """Return an id of pass ``number`` through the data; the first pass keeps it."""
    return name if number == 1 else f"{name}{PASS}{number}"


def turn_of_pass(turn_id: str, number: int) -> str:
    """Return the id of a turn in pass ``number``; the number of its choice stays at the end."""
    request, choice = choice_of(turn_id)
    return suffixed(turn_id, number) if request == turn_id else f"{suffixed(request, number)}.{choice}"


def is_of_pass(turn_id: str, number: str) -> bool:
    """Return whether a turn of a session ``ID~number`` is of that pass, and no client chose the session's name."""
    return number.isdigit() and (turn_id.startswith(OF_LOG) or f"{PASS}{number}" in turn_id)


def first_pass(session_id: str, turn_id: str) -> str:
    """Return what a turn's session is called in the first pass."""
    name, mark, number = session_id.rpartition(PASS)
    return name if mark and is_of_pass(turn_id, number) else session_id
