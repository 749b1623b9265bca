"""Meters: the tokens that each owner's turns took, by day.

========= =======================================================================================================
prefill   prompt tokens that an engine computed
cached    prompt tokens that it found in its cache
sampled   tokens of replies
judged    prompts and answers of the calls to judge and teacher about the owner's turns
trained   tokens with loss in samples whose step a checkpoint contains
stale     tokens with loss in samples that were dropped because they were too old
========= =======================================================================================================

Guarantees: a total is committed with what it counts, so a kill neither loses nor doubles it. What the gateway and the judge
spend is counted once and never taken back. Triggers (`openclaw.ledger.schema`) count ``trained`` and ``stale`` with the
state of a sample, whichever process moves it; if a restored checkpoint or a rollback undoes that, they take the tokens back
from the day that had them. A day is one of UTC. An agent's episode counts for the owner who created it.

Deleting a session leaves the totals, which hold no word of it. Deleting a person moves theirs to `FORGOTTEN`, so that the
sum over all owners stays.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from openclaw.config.meters import METERS
from openclaw.ledger.database import Database
from openclaw.ledger.records import Tokens
from openclaw.owners import CHILD, metered_owner, root

FORGOTTEN = "(forgotten)"
"""Owner of the totals of people who were deleted; no key has this name."""
_ADDED = ", ".join(f"{name} = {name} + excluded.{name}" for name in METERS)
_ADD = (
    f"INSERT INTO usage (day, owner, {', '.join(METERS)}) VALUES (?, ?, {', '.join('?' * len(METERS))})"
    f" ON CONFLICT (day, owner) DO UPDATE SET {_ADDED}"
)
_SUMS = ", ".join(f"TOTAL({name}) AS {name}" for name in METERS)
_OF_OWNER = "(owner = ? OR substr(owner, 1, ?) = ?)"


@dataclass(frozen=True)
class OwnersDay:
    """The tokens of an owner (`openclaw.owners.metered_owner`) on a day, ``YYYY-MM-DD``."""

    day: str
    owner: str
    tokens: Tokens


def day_of(at: float) -> str:
    """Return the day in UTC, ``YYYY-MM-DD``, of a time in seconds since the epoch."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def add_usage(connection: sqlite3.Connection, owner: str, at: float, tokens: Tokens) -> None:
    """Add tokens that an owner's turns took at a time in seconds since the epoch, inside a transaction."""
    counts = asdict(tokens)
    connection.execute(_ADD, (day_of(at), metered_owner(owner), *(counts[name] for name in METERS)))


def forget_usage(connection: sqlite3.Connection, person: str) -> None:
    """Move the totals of a person (`openclaw.owners.root`) to `FORGOTTEN`, inside a transaction."""
    rows = [dict(row) for row in connection.execute("SELECT * FROM usage") if root(row["owner"]) == person]
    for row in rows:
        connection.execute(_ADD, (row["day"], FORGOTTEN, *(row[name] for name in METERS)))
        connection.execute("DELETE FROM usage WHERE day = ? AND owner = ?", (row["day"], row["owner"]))


class Usage:
    """The totals of the ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, owner: str, tokens: Tokens) -> None:
        """Commit tokens that an owner's turns took now."""
        with self._database.transaction() as connection:
            add_usage(connection, owner, self._database.clock(), tokens)

    def days(self, since: str, until: str, owner: str | None = None) -> list[OwnersDay]:
        """Return what was counted from day ``since`` to day ``until``, both inclusive, by day and owner.

        With ``owner`` only what is counted for it and its children.
        """
        whose, parameters = _whose(owner)
        rows = self._database.rows(
            f"SELECT * FROM usage WHERE day BETWEEN ? AND ? AND {whose} ORDER BY day, owner",
            (since, until, *parameters),
        )
        return [OwnersDay(row["day"], row["owner"], _tokens(dict(row))) for row in rows]

    def total(self, day: str | None = None, owner: str | None = None) -> Tokens:
        """Return the sum over all days or of one, and over all owners or of one with its children."""
        whose, parameters = _whose(owner)
        when, days = ("1", ()) if day is None else ("day = ?", (day,))
        rows = self._database.rows(f"SELECT {_SUMS} FROM usage WHERE {when} AND {whose}", (*days, *parameters))
        return _tokens(dict(rows[0]))


def _whose(owner: str | None) -> tuple[str, tuple[object, ...]]:
    if owner is None:
        return "1", ()
    child = owner + CHILD
    return _OF_OWNER, (owner, len(child), child)


def _tokens(row: Mapping[str, float]) -> Tokens:
    return Tokens(**{name: int(row[name]) for name in METERS})
