"""What waits for a training step, and whose: the facts from which `openclaw.training.pace` decides what is due.

Reads the ledger and changes nothing.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

from openclaw.ledger.database import Database
from openclaw.ledger.decisions import OF_STEPS
from openclaw.ledger.records import Origin
from openclaw.ledger.samples import ROLLOUT, not_of
from openclaw.ledger.schema import OWNERS_PERSON


@dataclass(frozen=True)
class WaitingSession:
    """A person's session with samples that wait.

    Attributes:
        person: whose it is.
        newest: when the last of them came.
        active_at: when its last reply ended.
        closed: whether it has ended and gives no further sample.
        unjudged: whether a turn waits for the judge, or for scores.
    """

    person: str
    newest: float
    active_at: float
    closed: bool
    unjudged: bool


@dataclass(frozen=True)
class WaitingRound:
    """A round of a person's practice that waits since ``since``: ``count`` samples."""

    person: str
    count: int
    since: float


@dataclass(frozen=True)
class WaitingPerson:
    """What of a person waits.

    Attributes:
        person: who.
        ready: samples for a step.
        ready_since: when the oldest of them came; None without any.
        oldest_version: the first of the versions that sampled them; None if unknown.
        pending: turns for the judge.
        pending_since: when what follows the oldest of them came; None without any.
    """

    person: str
    ready: int = 0
    ready_since: float | None = None
    oldest_version: str | None = None
    pending: int = 0
    pending_since: float | None = None


@dataclass(frozen=True)
class Held:
    """The samples that a batch has already.

    Attributes:
        count: of rollouts.
        person: whose all of them are; None of several people's.
        origin: what they are of; a batch never has both.
    """

    count: int
    person: str | None
    origin: Origin


class Waiting:
    """Owned by the ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def sessions(self, without: Collection[str] = ()) -> list[WaitingSession]:
        """Return the sessions with ready samples, except those of some people; agents' episodes are none."""
        rows = self._database.rows(
            "SELECT waiting.*, ended_at IS NOT NULL AND closed_at IS NOT NULL AS closed,"
            " (SELECT finished_at FROM turns WHERE session_id = waiting.id ORDER BY number DESC LIMIT 1) AS active_at,"
            " EXISTS (SELECT 1 FROM turns INDEXED BY turns_by_session_state WHERE session_id = waiting.id"
            " AND state IN ('pending', 'unscored')) AS unjudged FROM"
            " (SELECT turns.session_id AS id, samples.person, MAX(samples.created_at) AS newest FROM samples"
            " JOIN turns ON turns.id = samples.turn_id WHERE samples.state = 'ready' AND samples.origin = 'live'"
            f" AND samples.episode IS NULL AND {not_of(without)} GROUP BY turns.session_id) AS waiting"
            " JOIN sessions ON sessions.id = waiting.id",
            tuple(without),
        )
        return [
            WaitingSession(
                row["person"], row["newest"], row["active_at"], bool(row["closed"]), unjudged=bool(row["unjudged"])
            )
            for row in rows
        ]

    def rounds(self, without: Collection[str] = ()) -> list[WaitingRound]:
        """Return the rounds of practice that wait, except those of some people."""
        rows = self._database.rows(
            "SELECT person, COUNT(*) AS n, MIN(created_at) AS since FROM samples WHERE state = 'ready'"
            f" AND origin = 'practice' AND {not_of(without)} GROUP BY person, practice_round",
            tuple(without),
        )
        return [WaitingRound(row["person"], row["n"], row["since"]) for row in rows]

    def people(self) -> list[WaitingPerson]:
        """Return what waits of everybody, by person; those of whom nothing does are left out."""
        result: dict[str, WaitingPerson] = {}
        for row in self._database.rows(
            "SELECT person, COUNT(*) AS ready, MIN(created_at) AS ready_since, MIN(CAST(oldest_version AS INTEGER)) AS oldest"
            " FROM samples INDEXED BY samples_ready WHERE state = 'ready' GROUP BY person"
        ):
            oldest = None if row["oldest"] is None else str(row["oldest"])
            result[row["person"]] = WaitingPerson(row["person"], row["ready"], row["ready_since"], oldest)
        for row in self._database.rows(
            f"SELECT {OWNERS_PERSON} AS person, COUNT(*) AS n, MIN(next_state_at) AS since"
            " FROM turns INDEXED BY turns_pending WHERE state = 'pending' GROUP BY 1"
        ):
            known = result.get(row["person"], WaitingPerson(row["person"]))
            result[row["person"]] = replace(known, pending=row["n"], pending_since=row["since"])
        return [result[person] for person in sorted(result)]

    def full_since(self, count: int, without: Collection[str] = ()) -> float | None:
        """Return since when ``count`` rollouts of anybody are ready, except those of some people; None if fewer are."""
        rows = self._database.rows(
            "SELECT MIN(created_at) AS at FROM samples WHERE state = 'ready' AND origin = 'live'"
            f" AND {not_of(without)} GROUP BY {ROLLOUT} ORDER BY at LIMIT 1 OFFSET ?",
            (*without, count - 1),
        )
        return rows[0]["at"] if rows else None

    def full_people(self, count: int, without: Collection[str] = ()) -> dict[str, float]:
        """Return the people of whom ``count`` rollouts are ready, except some, and since when they are."""
        rows = self._database.rows(
            "SELECT person, at FROM (SELECT person, MIN(created_at) AS at,"
            " ROW_NUMBER() OVER (PARTITION BY person ORDER BY MIN(created_at)) AS place FROM samples"
            f" WHERE state = 'ready' AND origin = 'live' AND {not_of(without)} GROUP BY person, {ROLLOUT}) WHERE place = ?",
            (*without, count),
        )
        return {row["person"]: row["at"] for row in rows}

    def tokens_since(self, at: float, passes: int) -> Counter[str]:
        """Return the tokens of each person in batches that are live since ``at`` or not yet; practice counts once a pass.

        Batches whose steps were refused or taken back count, too: they had their turn.
        """
        rows = self._database.rows(
            "SELECT person, SUM(LENGTH(tokens) / 4 * (CASE origin WHEN 'practice' THEN ? ELSE 1 END)) AS tokens"
            " FROM samples WHERE rollout_id > (SELECT COALESCE(MAX(rollout_id), -1) FROM steps WHERE undone_at IS NULL"
            " AND live_at < ?) AND (+state IN ('leased', 'trained')"
            f" OR reason IN ({', '.join('?' for _ in OF_STEPS)})) GROUP BY person",
            (passes, at, *OF_STEPS),
        )
        return Counter({row["person"]: row["tokens"] for row in rows})

    def held(self, rollout_id: int) -> Held:
        """Return what a batch has already."""
        row = self._database.rows(
            f"SELECT COUNT(DISTINCT {ROLLOUT}) AS n, MIN(person) AS first, MAX(person) AS last, MAX(origin) AS origin"
            " FROM samples WHERE state = 'leased' AND rollout_id = ?",
            (rollout_id,),
        )[0]
        return Held(row["n"], row["first"] if row["first"] == row["last"] else None, row["origin"] or "live")

    def last_reply(self) -> float | None:
        """Return when the newest reply to anybody ended; None without any."""
        rows: list[sqlite3.Row] = self._database.rows("SELECT finished_at FROM turns ORDER BY number DESC LIMIT 1")
        return rows[0]["finished_at"] if rows else None
