"""What the gate decided about each version of the weights, what becomes of a refused batch, and rollbacks.

Guarantees, relative to the restored checkpoint: a refused batch is in quarantine, and none of its samples is trained until
it is released; a release makes each of them ready exactly once. Each method is one transaction, and doing it again changes
nothing. A decision is undone with its batch when an older checkpoint is restored (`Samples.reconcile`); an acceptance, which
is a person's, never is.

After `Decisions.record_rollback` the trained samples are those that the weights which serve have learned from: later ones are
dropped with the reason `ROLLBACK`, and those that an earlier rollback had dropped count as trained again if these weights
have them (somebody went forward again). Told again about the same rollback, one decision is left. Tombstones of samples
that were forgotten after a rollback dropped them count for no step, even if somebody goes forward again.

The line of a checkpoint: a rollback at batch f to batch t writes its weights into the checkpoint of f, so later checkpoints
have learned from the batches after f and from what the checkpoint of t had learned from.

With adapters per person, a step, a decision and a rollback are of one person's adapter (``person``), whose versions count by
themselves: what serves, a series of refusals, an acceptance, probes and the line of a checkpoint are this person's alone. Where
``person`` is None, they are about the weights that everybody shares.

The row's kinds: ``start`` (the weights of the first comparison), ``step`` (accepted), ``refused``, ``rollback``, ``accept``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Literal, NamedTuple

from openclaw.ledger.database import Database, move_samples, sessions_of
from openclaw.ledger.lessons import Lessons

Kind = Literal["start", "step", "refused", "rollback", "accept"]
QUARANTINE, ROLLBACK, FUSE = "quarantine", "rollback", "fuse"
"""Why a sample was dropped: the gate refused its batch; a rollback went back to weights without it; a fuse held its step back."""
OF_STEPS = (QUARANTINE, ROLLBACK, FUSE)
"""Reasons of samples that a batch brought to the trainer."""
UNUSED = "unused "
"""How the name of a number begins that stands for a flag which no code reads, and which alone refused an update; of an
acceptance: which a person has accepted."""
_OF_FLAGS = f"metrics LIKE '%\"{UNUSED}--%'"
SERVING = "('start', 'step', 'rollback')"
"""The kinds of decisions whose weights serve, or served, in SQL."""
UNBOUNDED = 2**62
QUIET = 8
"""A series of refusals ends with so many accepted batches in a row."""
MAX_SERIES_LENGTH = 1024
EARLY = 128
"""Of the turns since the start, or since an acceptance, the first ones may always be compared."""
LATE = 1024
"""The newest turns that may not, at most; before that the newer half may not."""


@dataclass(frozen=True)
class DecisionRecord:
    """A decision.

    Attributes:
        number: in the order of time.
        rollout_id: the batch; of a rollback or an acceptance the last one before it.
        kind: see the module.
        weight_version: of the weights that were to serve.
        why: one line.
        by_margin: whether only the users' opinions spoke against it.
        metrics: numbers of the comparison.
        first_turn: number of the batch's middle turn, or the oldest turn that an acceptance keeps; None if unknown.
        last_turn: newest turn at an acceptance.
        decided_at: seconds since the epoch.
        live_at: when its weights went live; None if they did not.
        samples: that its step used, or that are in quarantine.
        certificate: see `openclaw.gate.certificate`; None without one.
        person: whose adapter it is about; None: everybody's weights.
    """

    number: int
    rollout_id: int
    kind: Kind
    weight_version: str
    why: str
    by_margin: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    first_turn: int | None = None
    last_turn: int | None = None
    decided_at: float = 0.0
    live_at: float | None = None
    samples: int = 0
    certificate: Mapping[str, Any] | None = None
    person: str | None = None


class JudgeAnswers(NamedTuple):
    """Answers of the judge since the last update: how many were asked for, and how many are lost."""

    asked: int
    lost: int


@dataclass(frozen=True)
class Offer:
    """A change that a person may accept: how many batches of a series were refused, and their samples in quarantine."""

    refusals: int
    samples: int

    def __str__(self) -> str:
        return (
            f"the gate refused {self.refusals} batches lately, because they contradict earlier opinions; "
            f"{self.samples} samples are in quarantine; if users changed their mind"
        )


@dataclass(frozen=True)
class Window:
    """Which probes count: numbers of turns from ``first``, below ``end``."""

    first: int
    end: int


BACK_TO, UNLEARNED = "rollback/to", "rollback/unlearned"
"""Numbers of a rollback's decision: the last batch in its weights, and how many samples it dropped."""
_STEP_OR_REFUSED = "kind IN ('step', 'refused')"


class Line(NamedTuple):
    """What the weights of a checkpoint have learned from.

    Attributes:
        parts: batches after the first number, up to the second.
        rollbacks: batch and weight version of each rollback on the way.
        known: about batches up to this one nothing is known; an earlier program recorded a rollback there.
    """

    parts: tuple[tuple[int, int], ...]
    rollbacks: tuple[tuple[int, str], ...]
    known: int

    def has(self, column: str) -> str:
        """Return an SQL condition on a batch's number; the numbers are the ledger's own, so they stand in the text."""
        return "(" + " OR ".join(f"{column} > {first} AND {column} <= {last}" for first, last in self.parts) + ")"

    def is_rollback(self) -> str:
        """Return an SQL condition on a row of ``steps``, which may stand for a rollback on the way."""
        pairs = [f"rollout_id = {batch} AND weight_version = '{int(version)}'" for batch, version in self.rollbacks]
        return "(" + " OR ".join(pairs or ["0"]) + ")"


class Decisions:
    """The gate's decisions, quarantine and rollbacks.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from openclaw.ledger.store import Ledger
        >>> folder = TemporaryDirectory()
        >>> ledger = Ledger(f"{folder.name}/ledger.sqlite")
        >>> ledger.decisions.record(7, "refused", "8", "liked replies fell", by_margin=True, metrics={"gate/margin": -0.2})
        1
        >>> [(refused.rollout_id, refused.why) for refused in ledger.decisions.refusals()]
        [(7, 'liked replies fell')]
        >>> ledger.close()
        >>> folder.cleanup()
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def middle_turn(self, rollout_id: int) -> int | None:
        """Return the number of the middle one of the turns that gave a batch its samples; None without any, as in practice."""
        rows = self._database.rows(
            "SELECT turns.number FROM samples JOIN turns ON turns.id = samples.turn_id"
            " WHERE samples.rollout_id = ? AND samples.origin = 'live'"
            " AND (samples.state = 'leased' OR samples.reason = ?) ORDER BY turns.number",
            (rollout_id, QUARANTINE),
        )
        return rows[(len(rows) - 1) // 2]["number"] if rows else None

    def refused_in_a_row(self, rollout_id: int) -> tuple[str, int] | None:
        """Return whose a refused batch was, and how many of this person's own batches were refused since one was accepted.

        None if the batch was several people's.
        """
        people = self._database.rows("SELECT DISTINCT person FROM samples WHERE rollout_id = ?", (rollout_id,))
        if len(people) != 1:
            return None
        person = people[0]["person"]
        rows = self._database.rows(
            f"SELECT kind FROM decisions WHERE undone_at IS NULL AND {_STEP_OR_REFUSED} AND rollout_id <= ?"
            " AND rollout_id IN (SELECT rollout_id FROM samples WHERE person = ?) AND NOT EXISTS (SELECT 1 FROM samples"
            " WHERE samples.rollout_id = decisions.rollout_id AND person <> ?) ORDER BY rollout_id DESC",
            (rollout_id, person, person),
        )
        return person, sum(1 for _ in takewhile(lambda row: row["kind"] == "refused", rows))

    def record(
        self,
        rollout_id: int,
        kind: Literal["start", "step", "refused"],
        weight_version: str,
        why: str,
        *,
        by_margin: bool = False,
        metrics: Mapping[str, float] | None = None,
        first_turn: int | None = None,
        scores: Mapping[str, float] | None = None,
        serving: tuple[int, Mapping[str, float]] | None = None,
        certificate: Mapping[str, Any] | None = None,
        person: str | None = None,
    ) -> int:
        """Record what was decided about a batch, in place of an earlier decision about it; return its number.

        A start replaces nothing: its weights are those after the batch before, whatever was decided about that.

        Args:
            rollout_id: the batch.
            kind: of the decision.
            weight_version: of its weights.
            why: one line.
            by_margin: whether only the users' opinions spoke against it.
            metrics: numbers of the comparison.
            first_turn: number of the batch's middle turn.
            scores: mean log-probability per token of each probe's reply, by turn.
            serving: the number of the decision whose weights serve, and the scores under these.
            certificate: of the update.
            person: whose adapter it is about; None: everybody's weights.
        """
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE decisions SET undone_at = ? WHERE rollout_id = ? AND kind IN ('step', 'refused')"
                " AND undone_at IS NULL AND ? <> 'start'",
                (self._database.clock(), rollout_id, kind),
            )
            number = self._insert_decision(
                connection,
                rollout_id=rollout_id,
                kind=kind,
                weight_version=weight_version,
                why=why,
                by_margin=int(by_margin),
                metrics=json.dumps(dict(metrics or {})),
                first_turn=first_turn,
                certificate=None if certificate is None else json.dumps(certificate),
                person=person,
            )
            self._score(connection, number, scores or {})
            if serving is not None:
                self._score(connection, *serving)
        return number

    def _insert_decision(self, connection: sqlite3.Connection, **columns: Any) -> int:
        columns = {"metrics": "{}", **columns, "decided_at": self._database.clock()}
        return self._database.insert(connection, "decisions", columns)

    def _score(self, connection: sqlite3.Connection, number: int, scores: Mapping[str, float]) -> None:
        """Add scores of probes; a turn that was forgotten meanwhile gets none."""
        connection.executemany(
            "INSERT INTO probe_scores (decision, turn_id, score) SELECT ?, id, ? FROM turns WHERE id = ?"
            " ON CONFLICT DO UPDATE SET score = excluded.score",
            [(number, score, turn_id) for turn_id, score in scores.items()],
        )

    def last_certified(self, *whose: str | None) -> DecisionRecord | None:
        """Return the newest decision with a certificate.

        ``whose``: about this person's adapter, or with None about the weights that everybody shares; without it about any.
        """
        own = "AND person IS ?" if whose else ""
        result = self.all(f"AND certificate IS NOT NULL {own} ORDER BY number DESC LIMIT 1", whose)
        return result[0] if result else None

    def people_with_red_certificate(self) -> int:
        """Return the number of people whose own adapter's newest certificate is red."""
        return self._database.rows(
            "SELECT COUNT(*) AS n FROM (SELECT DISTINCT person FROM decisions WHERE person IS NOT NULL) AS known WHERE"
            " json_array_length((SELECT certificate FROM decisions WHERE person = known.person AND certificate IS NOT NULL"
            " AND undone_at IS NULL ORDER BY number DESC LIMIT 1), '$.causes') > 0"
        )[0]["n"]

    def judge_answers(self, person: str | None = None) -> JudgeAnswers:
        """Return how many judge answers were asked for since the last decided update, and how many of them are lost.

        Lost are votes that nobody could read, and a turn whose judging fails now or was given up counts as one lost answer.
        With ``person``, the update and the answers are this person's.
        """
        since = self._database.rows(
            f"SELECT COALESCE(MAX(decided_at), 0) AS at FROM decisions WHERE {_STEP_OR_REFUSED} AND person IS ?",
            (person,),
        )[0]["at"]
        own, names = ("1", ()) if person is None else sessions_of(person)
        of_person = f"turn_id IN (SELECT id FROM turns WHERE {own})" if person is not None else "1"
        votes = self._database.rows(
            "SELECT COUNT(*) AS asked, COALESCE(SUM(json_extract(vote.value, '$.value') IS NULL), 0) AS lost"
            f" FROM verdicts, json_each(verdicts.verdict, '$.votes') AS vote WHERE {of_person} AND judged_at > ?",
            (*names, since),
        )[0]
        failed = self._database.rows(
            f"SELECT (SELECT COUNT(*) FROM turns WHERE {own} AND state = 'pending' AND judge_attempts > 0)"
            f" + (SELECT COUNT(*) FROM turns JOIN verdicts ON turn_id = turns.id WHERE {own} AND judged_at > ?"
            " AND state = 'judged' AND reason IN ('judge_gave_up', 'judge_refused')) AS n",
            (*names, since),
        )[0]["n"]
        return JudgeAnswers(votes["asked"] + failed, votes["lost"] + failed)

    def serving(self, person: str | None = None) -> DecisionRecord | None:
        """Return the newest decision whose weights serve: a start, a step or a rollback; None before the first.

        With ``person``, of this person's adapter.
        """
        result = self.all(f"AND person IS ? AND kind IN {SERVING} ORDER BY number DESC LIMIT 1", (person,))
        return result[0] if result else None

    def accepted_scores(self, count: int, person: str | None = None) -> dict[int, dict[str, float]]:
        """Return the scores of the last ``count`` accepted versions since a rollback or acceptance, by decision and turn.

        Scores of older ones are deleted. With ``person``, all of this person's adapter.
        """
        with self._database.transaction() as connection:
            marks = connection.execute(
                "SELECT MAX(number) FROM decisions WHERE kind IN ('rollback', 'accept') AND undone_at IS NULL"
                " AND person IS ?",
                (person,),
            ).fetchone()
            kept = connection.execute(
                f"SELECT number FROM decisions WHERE kind IN {SERVING} AND undone_at IS NULL AND person IS ?"
                " AND number >= ? ORDER BY number DESC LIMIT ?",
                (person, marks[0] or 0, count),
            ).fetchall()
            oldest = min((row["number"] for row in kept), default=UNBOUNDED)
            serving = connection.execute(
                f"SELECT MAX(number) FROM decisions WHERE kind IN {SERVING} AND undone_at IS NULL AND person IS ?",
                (person,),
            ).fetchone()[0]
            connection.execute(
                "DELETE FROM probe_scores WHERE decision < ? AND decision <> ?"
                " AND decision IN (SELECT number FROM decisions WHERE person IS ?)",
                (oldest, UNBOUNDED if serving is None else serving, person),
            )
            of_decision = "SELECT turn_id, score FROM probe_scores WHERE decision = ?"
            return {row["number"]: dict(connection.execute(of_decision, (row["number"],)).fetchall()) for row in kept}

    def refusals(self, person: str | None = None) -> list[DecisionRecord]:
        """Return the refusals of the series that has not ended, newest first.

        A series ends with `QUIET` accepted batches in a row, a rollback or an acceptance. With ``person``, of this person's
        adapter.
        """
        rows = self._database.rows(
            "SELECT number, kind FROM decisions WHERE undone_at IS NULL AND person IS ? AND kind <> 'start'"
            f" AND NOT (kind = 'accept' AND {_OF_FLAGS}) ORDER BY number DESC LIMIT ?",
            (person, MAX_SERIES_LENGTH),
        )
        end, quiet = 0, 0
        for row in rows:
            quiet = quiet + 1 if row["kind"] == "step" else 0
            if quiet == QUIET or row["kind"] in ("rollback", "accept"):
                end = row["number"]
                break
        return self.all(
            "AND person IS ? AND kind = 'refused' AND number > ? ORDER BY number DESC",
            (person, end),
        )

    def offer(self, fewest: int, person: str | None = None) -> Offer | None:
        """Return what a person may accept: at least ``fewest`` refusals of a series by the users' opinions; None without.

        With ``person``, of this person's adapter.
        """
        row = [refusal for refusal in self.refusals(person) if refusal.by_margin]
        return Offer(len(row), sum(item.samples for item in row)) if len(row) >= fewest else None

    def probe_window(self, first_turn: int | None, person: str | None = None) -> Window:
        """Return which turns may decide about a batch.

        Its own judge does not decide alone: turns that are newer than the middle of the batch do not count, and neither do
        those since the first refusal of a series, nor the newer half of all, so that a judge that errs for long meets
        opinions from before. Older ones than an accepted change do not count either; those that a person has accepted do.

        Args:
            first_turn: number of the batch's middle turn; None if unknown.
            person: whose adapter it is about; how old a turn is counts by this person's turns. None: by everybody's.
        """
        accepted = self.all(
            f"AND person IS ? AND kind = 'accept' AND NOT {_OF_FLAGS} ORDER BY number DESC LIMIT 1", (person,)
        )
        row = [
            refusal.first_turn
            for refusal in self.refusals(person)
            if refusal.by_margin and refusal.first_turn is not None
        ]
        first, known = (accepted[0].first_turn or 0, accepted[0].last_turn or 0) if accepted else (0, 0)
        newest = (
            self._database.rows("SELECT COALESCE(MAX(number), 0) AS n FROM turns")[0]["n"]
            if first_turn is None
            else first_turn
        )
        old = self._oldest_half(first, newest, person)
        ends = [end for end in (first_turn, old, *row) if end is not None]
        return Window(first, max(min(ends), known + 1))

    def _oldest_half(self, first: int, newest: int, person: str | None) -> int:
        """Return the number below which turns since ``first`` are old enough to be compared; by a person's own turns."""
        if person is None:
            return max(first + EARLY, (first + newest) // 2, newest - LATE)
        of_person, names = sessions_of(person)
        own = [
            row["number"]
            for row in self._database.rows(
                f"SELECT number FROM turns WHERE {of_person} AND number >= ? AND number <= ? ORDER BY number",
                (*names, first, newest),
            )
        ]
        kept = max(EARLY, len(own) // 2, len(own) - LATE)
        return own[kept] if kept < len(own) else newest + 1

    def accept_refused(self, fewest: int, person: str | None = None) -> DecisionRecord | None:
        """Accept what the gate refused by the users' opinions at least ``fewest`` times in a series.

        Releases the batches from quarantine and retires the probes from before the first one. With ``person``, of this person's
        adapter.

        Returns:
            The acceptance, with the number of released samples; None, with nothing written, if there are fewer refusals.
        """
        with self._database.transaction() as connection:
            row = [refusal for refusal in self.refusals(person) if refusal.by_margin]
            if not row or len(row) < fewest:
                return None
            released = _release(connection, row)
            last = connection.execute("SELECT COALESCE(MAX(number), 0) AS n FROM turns").fetchone()["n"]
            number = self._insert_decision(
                connection,
                rollout_id=row[0].rollout_id,
                kind="accept",
                weight_version="",
                why=f"a person accepted the change of {len(row)} refused batches; {released} samples are ready again",
                first_turn=row[-1].first_turn,
                last_turn=last,
                person=person,
            )
        (accepted,) = self.all("AND number = ?", (number,))
        return replace(accepted, samples=released)

    def accepted_flags(self) -> frozenset[str]:
        """Return the flags that no code reads and that a person has accepted."""
        return frozenset[str]().union(*map(_flags, self.all(f"AND kind = 'accept' AND {_OF_FLAGS}")))

    def accept_flags(self) -> DecisionRecord | None:
        """Accept the flags for which alone the gate refused batches, and release these from quarantine.

        Returns:
            The acceptance, with the number of released samples; None, with nothing written, without such a refusal.
        """
        with self._database.transaction() as connection:
            known = self.accepted_flags()
            row = [item for item in self.all(f"AND kind = 'refused' AND {_OF_FLAGS}") if _flags(item) - known]
            if not row:
                return None
            flags = sorted(frozenset[str]().union(*map(_flags, row)))
            released = _release(connection, row)
            number = self._insert_decision(
                connection,
                rollout_id=row[-1].rollout_id,
                kind="accept",
                weight_version="",
                why=f"a person accepted flags without effect: {', '.join(flags)}; {released} samples are ready again",
                metrics=json.dumps({f"{UNUSED}{flag}": 1.0 for flag in flags}),
            )
        (accepted,) = self.all("AND number = ?", (number,))
        return replace(accepted, samples=released)

    def quarantine(self, rollout_id: int) -> int:
        """Drop the samples of a batch that the gate refused; return their number. `accept_refused` and `accept_flags` release them.

        If a person has accepted the refusal before its steps were undone, the samples are ready again instead.
        """
        with self._database.transaction() as connection:
            connection.execute("UPDATE forgotten_samples SET rollout_id = NULL WHERE rollout_id = ?", (rollout_id,))
            released = connection.execute(
                "SELECT 1 FROM decisions AS refused JOIN decisions AS accepted ON accepted.kind = 'accept'"
                " AND accepted.number > refused.number WHERE refused.kind = 'refused' AND refused.undone_at IS NULL"
                f" AND (accepted.person IS refused.person OR accepted.{_OF_FLAGS})"
                f" AND (CASE WHEN accepted.{_OF_FLAGS} THEN refused.{_OF_FLAGS} ELSE refused.by_margin END)"
                " AND refused.rollout_id = ?",
                (rollout_id,),
            ).fetchone()
            if released is not None:
                move_samples(connection, "release", "rollout_id = ?", (rollout_id,))
                return 0
            return move_samples(connection, "refuse", "rollout_id = ?", (rollout_id,), reason=QUARANTINE)

    def all(self, condition: str = "ORDER BY number", parameters: tuple[Any, ...] = ()) -> list[DecisionRecord]:
        """Return the decisions that were not undone and meet the end of an SQL query, by default all, oldest first."""
        rows = self._database.rows(
            "SELECT decisions.*, (SELECT MIN(live_at) FROM steps WHERE steps.rollout_id = decisions.rollout_id"
            " AND steps.weight_version = decisions.weight_version AND steps.undone_at IS NULL) AS live_at,"
            " (SELECT COUNT(*) FROM samples WHERE samples.rollout_id = decisions.rollout_id"
            " AND (samples.state <> 'dropped' OR samples.reason = 'quarantine')) AS samples"
            f" FROM decisions WHERE undone_at IS NULL {condition}",
            parameters,
        )
        return [
            DecisionRecord(
                number=row["number"],
                rollout_id=row["rollout_id"],
                kind=row["kind"],
                weight_version=row["weight_version"],
                why=row["why"],
                by_margin=bool(row["by_margin"]),
                metrics=json.loads(row["metrics"]),
                first_turn=row["first_turn"],
                last_turn=row["last_turn"],
                decided_at=row["decided_at"],
                live_at=row["live_at"],
                samples=row["samples"],
                certificate=None if row["certificate"] is None else json.loads(row["certificate"]),
                person=row["person"],
            )
            for row in rows
        ]

    def record_rollback(
        self,
        to_rollout_id: int,
        from_rollout_id: int,
        weight_version: str,
        at: float,
        person: str | None = None,
        to_version: str | None = None,
    ) -> int:
        """Record that the weights after ``to_rollout_id`` serve again, as ``weight_version``, in place of later ones.

        Lessons that these had learned are served again.

        Args:
            to_rollout_id: last batch in these weights; -1 for the initial ones.
            from_rollout_id: last batch in the weights that served before.
            weight_version: under which they serve now.
            at: since when, seconds since the epoch.
            person: whose adapter goes back; both batches are of this person. None: everybody's weights.
            to_version: version of the weights that serve again, if later ones of the same batch may be on disk, too.

        Returns:
            The number of samples that they have not learned from any more.
        """
        with self._database.transaction() as connection:
            earlier = self._told_before(connection, to_rollout_id, from_rollout_id, weight_version, at, person)
            line = line_of(connection, to_rollout_id, person, to_version)
            old = connection.execute(
                "SELECT weight_version FROM steps WHERE person IS ? AND rollout_id <= ? AND rollout_id NOT IN"
                " (SELECT rollout_id FROM decisions WHERE kind = 'refused' AND undone_at IS NULL)"
                " ORDER BY rollout_id DESC, number DESC LIMIT 1",
                (person, to_rollout_id),
            ).fetchone()
            dropped = align(connection, line, from_rollout_id, at, person)
            connection.execute(
                "UPDATE steps SET undone_at = ? WHERE undone_at IS NULL AND rollout_id = ?", (at, from_rollout_id)
            )
            connection.execute(
                "INSERT INTO steps (rollout_id, weight_version, trained_at, live_at, person) VALUES (?, ?, ?, ?, ?)",
                (from_rollout_id, weight_version, at, at, person),
            )
            Lessons(self._database).unlearn(connection)
            back = "the initial weights" if old is None else f"version {old['weight_version']}"
            unlearned = earlier + dropped
            self._insert_decision(
                connection,
                rollout_id=from_rollout_id,
                kind="rollback",
                weight_version=weight_version,
                why=f"back to {back}; {unlearned} samples are unlearned",
                metrics=json.dumps({BACK_TO: to_rollout_id, UNLEARNED: unlearned}),
                person=person,
            )
        return dropped

    def batch_of_version(self, person: str, weight_version: str) -> int | None:
        """Return the last batch in a version of a person's adapter; -1 for version 0, None for one that the ledger does not know.

        A version that was trained anew after a loss is the newer one.
        """
        rows = self._database.rows(
            "SELECT rollout_id FROM steps WHERE person = ? AND weight_version = ? ORDER BY number DESC LIMIT 1",
            (person, weight_version),
        )
        return rows[0]["rollout_id"] if rows else -1 if weight_version == "0" else None

    def last_batch(self, person: str) -> int:
        """Return the last batch that a person's adapter was trained with, its step told or in a checkpoint; -1 before the first."""
        rows = self._database.rows(
            "SELECT COALESCE(MAX(rollout_id), -1) AS last FROM ("
            "SELECT rollout_id FROM steps WHERE person = ? AND undone_at IS NULL"
            " UNION ALL SELECT rollout_id FROM samples WHERE person = ? AND state = 'trained')",
            (person, person),
        )
        return rows[0]["last"]

    def _told_before(
        self,
        connection: sqlite3.Connection,
        to_rollout_id: int,
        from_rollout_id: int,
        version: str,
        at: float,
        person: str | None,
    ) -> int:
        """Undo the decision of the same rollback if a process died behind it; return how many samples it had dropped."""
        newest = connection.execute(
            f"SELECT * FROM decisions WHERE undone_at IS NULL AND person IS ? AND kind IN {SERVING}"
            " ORDER BY number DESC LIMIT 1",
            (person,),
        ).fetchone()
        if newest is None or newest["kind"] != "rollback" or newest["rollout_id"] != from_rollout_id:
            return 0
        numbers = json.loads(newest["metrics"])
        if newest["weight_version"] != version and numbers.get(BACK_TO) != to_rollout_id:
            return 0
        connection.execute("UPDATE decisions SET undone_at = ? WHERE number = ?", (at, newest["number"]))
        return int(numbers.get(UNLEARNED, 0)) if numbers.get(BACK_TO) == to_rollout_id else 0


def _flags(decision: DecisionRecord) -> frozenset[str]:
    """Return the flags that a decision's numbers name."""
    return frozenset(name.removeprefix(UNUSED) for name in decision.metrics if name.startswith(UNUSED))


def _release(connection: sqlite3.Connection, refused: Sequence[DecisionRecord]) -> int:
    """Let the samples of refused batches leave the quarantine, inside a transaction; return their number."""
    batches = [item.rollout_id for item in refused]
    quarantined = f"reason = ? AND rollout_id IN ({', '.join('?' for _ in batches)})"
    return move_samples(connection, "readmit", quarantined, (QUARANTINE, *batches))


def people_of_steps(connection: sqlite3.Connection) -> list[str | None]:
    """Return whose weights steps and decisions are about, everybody's (None) first."""
    rows = connection.execute(
        "SELECT person FROM steps WHERE person IS NOT NULL UNION SELECT person FROM decisions WHERE person IS NOT NULL"
    )
    return [None, *sorted(row["person"] for row in rows)]


def _batches_of(person: str | None) -> tuple[str, tuple[str, ...]]:
    """Return the SQL condition that ``rollout_id`` is a batch of a person's adapter, or of nobody's with None, and its parameters."""
    batches = "SELECT rollout_id FROM {} WHERE person {}"
    if person is None:
        told = " UNION ".join(batches.format(table, "IS NOT NULL") for table in ("steps", "decisions"))
        return f"rollout_id NOT IN ({told})", ()
    tables = ("steps", "decisions", "samples")  # a run that stops may tell of a step never
    return f"rollout_id IN ({' UNION '.join(batches.format(table, '= ?') for table in tables)})", (person,) * len(
        tables
    )


def line_of(
    connection: sqlite3.Connection, rollout_id: int, person: str | None = None, version: str | None = None
) -> Line:
    """Return the line of the checkpoint of a batch; with ``person``, of this person's adapter in it.

    With ``version`` it is that of this version, which knows of no rollback that led to a later one.
    """
    rows = connection.execute(
        f"SELECT rollout_id, weight_version, json_extract(metrics, '$.\"{BACK_TO}\"') AS back FROM decisions"
        " WHERE kind = 'rollback' AND undone_at IS NULL AND person IS ? ORDER BY number",
        (person,),
    ).fetchall()
    if version is not None:
        rows = [row for row in rows if int(row["weight_version"]) <= int(version)]
    parts, rollbacks, end = list[tuple[int, int]](), list[tuple[int, str]](), rollout_id
    # From the checkpoint backwards: each rollback on the way leads to the batch that it went back to.
    for row in reversed(rows):
        if row["rollout_id"] > end:
            continue
        parts.append((row["rollout_id"], end))
        rollbacks.append((row["rollout_id"], row["weight_version"]))
        if row["back"] is None:
            return Line(tuple(parts), tuple(rollbacks), row["rollout_id"])
        end = int(row["back"])
    return Line((*parts, (-1, end)), tuple(rollbacks), -1)


def align(connection: sqlite3.Connection, line: Line, last: int, at: float, person: str | None = None) -> int:
    """Let samples, steps and decisions up to the batch ``last`` say what ``line`` has learned from; return how many were dropped.

    Only batches of a person's adapter are touched, or with None those of the weights that everybody shares.
    """
    of_batch, batch_names = _batches_of(person)
    # Another person may have had a batch of the same number, before a restart or after it.
    own, names = (of_batch, batch_names) if person is None else (f"person = ? AND {of_batch}", (person, *batch_names))
    numbers, has = f"rollout_id > {line.known} AND rollout_id <= {last}", line.has("rollout_id")
    known = f"{own} AND {numbers}"
    again = connection.execute(
        f"SELECT id FROM samples WHERE state = 'dropped' AND {known} AND {has} AND reason = ?", (*names, ROLLBACK)
    ).fetchall()
    for state in ("ready", "leased", "trained"):  # the way that a sample may go
        connection.executemany(
            "UPDATE samples SET state = ?, reason = NULL WHERE id = ?", [(state, row["id"]) for row in again]
        )
    dropped = move_samples(connection, "unlearn", f"{known} AND NOT {has}", names, reason=ROLLBACK)
    connection.execute(
        f"UPDATE forgotten_samples SET rollout_id = NULL WHERE {of_batch} AND {numbers} AND NOT {has}", batch_names
    )
    connection.execute(
        f"UPDATE steps SET undone_at = ? WHERE undone_at IS NULL AND {known} AND NOT {has} AND NOT {line.is_rollback()}",
        (at, *names),
    )
    connection.execute(
        f"UPDATE decisions SET undone_at = ? WHERE undone_at IS NULL AND kind IN ('start', 'step') AND {known} AND NOT {has}",
        (at, *names),
    )
    _revive(connection, known, names, has, line.is_rollback())
    return dropped


def _revive(connection: sqlite3.Connection, known: str, names: tuple[str, ...], has: str, is_rollback: str) -> None:
    """Let the newest step and decision of batches that are trained again count again."""
    trained = (
        "EXISTS (SELECT 1 FROM samples WHERE samples.rollout_id = {0}.rollout_id AND samples.state = 'trained'"
        " AND ({0}.person IS NULL OR samples.person = {0}.person))"
    )
    of_rollback = (
        "EXISTS (SELECT 1 FROM decisions WHERE kind = 'rollback' AND decisions.rollout_id = steps.rollout_id"
        " AND decisions.weight_version = steps.weight_version)"
    )
    live = "rollout_id IN (SELECT rollout_id FROM {0} WHERE undone_at IS NULL{1})"
    connection.execute(
        "UPDATE steps SET undone_at = NULL WHERE number IN (SELECT MAX(number) FROM steps"
        f" WHERE {known} AND ({has} AND {trained.format('steps')} AND NOT {of_rollback} OR {is_rollback})"
        f" GROUP BY rollout_id) AND NOT {live.format('steps', '')}",
        names,
    )
    connection.execute(
        "UPDATE decisions SET undone_at = NULL WHERE kind = 'step' AND number IN (SELECT MAX(number) FROM decisions"
        f" WHERE {_STEP_OR_REFUSED} AND {known} AND {has} AND {trained.format('decisions')} GROUP BY rollout_id)"
        f" AND NOT {live.format('decisions', f' AND {_STEP_OR_REFUSED}')}",
        names,
    )
