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
sum over all owners stays. Those of the day itself stand there under a digest of name and day until another day's deletion, so
that nobody gets rid of a quota by deleting themselves.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter
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


def forget_usage(connection: sqlite3.Connection, person: str, now: float) -> None:
    """Move the totals of a person (`openclaw.owners.root`) to `FORGOTTEN`, inside a transaction; ``now``: seconds since the epoch."""
    today, prefix = day_of(now), FORGOTTEN + CHILD
    for row in [dict(row) for row in connection.execute("SELECT * FROM usage")]:
        gone = root(row["owner"]) == person
        if gone or (row["owner"].startswith(prefix) and row["day"] != today):
            owner = _forgotten_on(today, person) if gone and row["day"] == today else FORGOTTEN
            connection.execute("DELETE FROM usage WHERE day = ? AND owner = ?", (row["day"], row["owner"]))
            connection.execute(_ADD, (row["day"], owner, *(row[name] for name in METERS)))


def _forgotten_on(day: str, person: str) -> str:
    """Return under which owner stands what a person used who was deleted on this day."""
    return f"{FORGOTTEN}{CHILD}{hashlib.sha256(f'{day} {person}'.encode()).hexdigest()[:16]}"


def has_usage(connection: sqlite3.Connection, owner: str) -> bool:
    """Return whether anything is counted for a person or their children; not after they were deleted."""
    whose, parameters = _whose(root(owner))
    return connection.execute(f"SELECT 1 FROM usage WHERE {whose} LIMIT 1", parameters).fetchone() is not None


class Usage:
    """The totals of a file that has `openclaw.ledger.schema.USAGE_TABLE`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, owner: str, tokens: Tokens) -> None:
        """Commit tokens that an owner's turns took now."""
        with self._database.transaction() as connection:
            add_usage(connection, owner, self._database.clock(), tokens)

    def add_to_turn(self, turn_id: str, owner: str, tokens: Tokens) -> None:
        """Commit what a recorded turn of ``owner`` took now; to `FORGOTTEN` if its person was deleted meanwhile."""
        with self._database.transaction() as connection:
            there = connection.execute("SELECT 1 FROM turns WHERE id = ?", (turn_id,)).fetchone() is not None
            whose = owner if there or has_usage(connection, owner) else FORGOTTEN
            add_usage(connection, whose, self._database.clock(), tokens)

    def days(self, since: str, until: str, owner: str | None = None) -> list[OwnersDay]:
        """Return what was counted from day ``since`` to day ``until``, both inclusive, by day and owner.

        With ``owner`` only what is counted for it and its children.
        """
        whose, parameters = _whose(owner)
        rows = self._database.rows(
            f"SELECT * FROM usage WHERE day BETWEEN ? AND ? AND {whose} ORDER BY day, owner",
            (since, until, *parameters),
        )
        found: dict[tuple[str, str], Counter[str]] = {}
        for row in rows:
            gone = row["owner"].startswith(FORGOTTEN + CHILD)
            sums = found.setdefault((row["day"], FORGOTTEN if gone else row["owner"]), Counter())
            sums.update({name: row[name] for name in METERS})
        return [OwnersDay(day, name, _tokens(sums)) for (day, name), sums in found.items()]

    def day_before(self, day: str, owner: str | None = None) -> str | None:
        """Return the last day before ``day`` on which something was counted, for one owner with its children if given."""
        whose, parameters = _whose(owner)
        rows = self._database.rows(f"SELECT MAX(day) FROM usage WHERE day < ? AND {whose}", (day, *parameters))
        return rows[0][0]

    def total(self, day: str | None = None, owner: str | None = None) -> Tokens:
        """Return the sum over all days or of one, and over all owners or of one with its children."""
        whose, parameters = _whose(owner)
        when, days = ("1", ()) if day is None else ("day = ?", (day,))
        if day is not None and owner is not None:  # also what an owner used before deleting themselves on this day
            whose, parameters = f"({whose} OR owner = ?)", (*parameters, _forgotten_on(day, root(owner)))
        rows = self._database.rows(f"SELECT {_SUMS} FROM usage WHERE {when} AND {whose}", (*days, *parameters))
        return _tokens(dict(rows[0]))


def _whose(owner: str | None) -> tuple[str, tuple[object, ...]]:
    if owner is None:
        return "1", ()
    child = owner + CHILD
    return _OF_OWNER, (owner, len(child), child)


def _tokens(row: Mapping[str, float]) -> Tokens:
    return Tokens(**{name: int(row[name]) for name in METERS})
