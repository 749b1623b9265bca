"""What the gate decided about each version of the weights, and what becomes of a batch that it refused.

Guarantees, relative to the restored checkpoint: a refused batch is in quarantine, and none of its samples is trained until
it is released; a release makes each of them ready exactly once. Each method is one transaction, and doing it again changes nothing. A decision
is undone with its batch when an older checkpoint is restored (`SampleQueries.reconcile`); an acceptance, which is a person's,
never is. `openclaw.ledger.rollbacks` has the rollbacks.

The row's kinds: ``start`` (the weights of the first comparison), ``step`` (accepted), ``refused``, ``rollback``, ``accept``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from openclaw.ledger.database import Database

Kind = Literal["start", "step", "refused", "rollback", "accept"]
QUARANTINE, ROLLBACK = "quarantine", "rollback"
"""Why a sample was dropped: the gate refused its batch; a rollback went back to weights without it."""
SERVING = "('start', 'step', 'rollback')"
"""The kinds of decisions whose weights serve, or served, in SQL."""
UNBOUNDED = 2**62
QUIET = 8
"""A series of refusals ends with so many accepted batches in a row."""
LONGEST_SERIES = 1024
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


class DecisionQueries(Database):
    """The ledger's queries for the gate, its commands and the data source."""

    def middle_turn(self, rollout_id: int) -> int | None:
        """Return the number of the middle one of the turns whose samples a batch has; None without any."""
        found = self.rows(
            "SELECT turns.number FROM samples JOIN turns ON turns.id = samples.turn_id"
            " WHERE samples.rollout_id = ? AND (samples.state = 'leased' OR samples.reason = ?) ORDER BY turns.number",
            (rollout_id, QUARANTINE),
        )
        return found[(len(found) - 1) // 2]["number"] if found else None

    def record_decision(
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
        """
        with self.transaction() as connection:
            connection.execute(
                "UPDATE decisions SET undone_at = ? WHERE rollout_id = ? AND kind IN ('step', 'refused')"
                " AND undone_at IS NULL AND ? <> 'start'",
                (self.clock(), rollout_id, kind),
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
            )
            self._score(connection, number, scores or {})
        return number

    def _insert_decision(self, connection: sqlite3.Connection, **columns: Any) -> int:
        columns = {"metrics": "{}", **columns, "decided_at": self.clock()}
        marks = ", ".join("?" for _ in columns)
        cursor = connection.execute(
            f"INSERT INTO decisions ({', '.join(columns)}) VALUES ({marks})", tuple(columns.values())
        )
        return int(cursor.lastrowid or 0)

    def _score(self, connection: sqlite3.Connection, number: int, scores: Mapping[str, float]) -> None:
        """Add scores of probes; a turn that was forgotten meanwhile gets none."""
        connection.executemany(
            "INSERT INTO probe_scores (decision, turn_id, score) SELECT ?, id, ? FROM turns WHERE id = ?"
            " ON CONFLICT DO UPDATE SET score = excluded.score",
            [(number, score, turn_id) for turn_id, score in scores.items()],
        )

    def add_scores(self, number: int, scores: Mapping[str, float]) -> None:
        """Store scores of probes under the weights of an earlier decision."""
        with self.transaction() as connection:
            self._score(connection, number, scores)

    def serving(self) -> DecisionRecord | None:
        """Return the newest decision whose weights serve: a start, a step or a rollback; None before the first."""
        found = self.decisions(f"AND kind IN {SERVING} ORDER BY number DESC LIMIT 1")
        return found[0] if found else None

    def accepted_scores(self, count: int) -> dict[int, dict[str, float]]:
        """Return the scores of the last ``count`` accepted versions since a rollback or acceptance, by decision and turn.

        Scores of older ones are deleted.
        """
        with self.transaction() as connection:
            marks = connection.execute(
                "SELECT MAX(number) FROM decisions WHERE kind IN ('rollback', 'accept') AND undone_at IS NULL"
            ).fetchone()
            kept = connection.execute(
                f"SELECT number FROM decisions WHERE kind IN {SERVING} AND undone_at IS NULL AND number >= ?"
                " ORDER BY number DESC LIMIT ?",
                (marks[0] or 0, count),
            ).fetchall()
            oldest = min((row["number"] for row in kept), default=UNBOUNDED)
            serving = connection.execute(
                f"SELECT MAX(number) FROM decisions WHERE kind IN {SERVING} AND undone_at IS NULL"
            ).fetchone()[0]
            connection.execute(
                "DELETE FROM probe_scores WHERE decision < ? AND decision <> ?",
                (oldest, UNBOUNDED if serving is None else serving),
            )
            found = connection.execute("SELECT decision, turn_id, score FROM probe_scores").fetchall()
        scores: dict[int, dict[str, float]] = {row["number"]: {} for row in kept}
        for row in found:
            if row["decision"] in scores:
                scores[row["decision"]][row["turn_id"]] = row["score"]
        return scores

    def refusals(self) -> list[DecisionRecord]:
        """Return the refusals of the series that has not ended, newest first.

        A series ends with `QUIET` accepted batches in a row, a rollback or an acceptance.
        """
        found = self.rows(
            "SELECT number, kind FROM decisions WHERE undone_at IS NULL AND kind <> 'start' ORDER BY number DESC LIMIT ?",
            (LONGEST_SERIES,),
        )
        end, quiet = 0, 0
        for row in found:
            quiet = quiet + 1 if row["kind"] == "step" else 0
            if quiet == QUIET or row["kind"] in ("rollback", "accept"):
                end = row["number"]
                break
        return self.decisions("AND kind = 'refused' AND number > ? ORDER BY number DESC", (end,))

    def offer(self, fewest: int) -> Offer | None:
        """Return what a person may accept: at least ``fewest`` refusals of a series by the users' opinions; None without."""
        row = [each for each in self.refusals() if each.by_margin]
        return Offer(len(row), sum(each.samples for each in row)) if len(row) >= fewest else None

    def probe_window(self, first_turn: int | None) -> Window:
        """Return which turns may decide about a batch.

        Its own judge does not decide alone: turns that are newer than the middle of the batch do not count, and neither do
        those since the first refusal of a series, nor the newer half of all, so that a judge that errs for long meets
        opinions from before. Older ones than an accepted change do not count either; those that a person has accepted do.

        Args:
            first_turn: number of the batch's middle turn; None if unknown.
        """
        accepted = self.decisions("AND kind = 'accept' ORDER BY number DESC LIMIT 1")
        row = [each.first_turn for each in self.refusals() if each.by_margin and each.first_turn is not None]
        first, known = (accepted[0].first_turn or 0, accepted[0].last_turn or 0) if accepted else (0, 0)
        newest = (
            self.rows("SELECT COALESCE(MAX(number), 0) AS n FROM turns")[0]["n"] if first_turn is None else first_turn
        )
        old = max(first + EARLY, (first + newest) // 2, newest - LATE)
        ends = [end for end in (first_turn, old, *row) if end is not None]
        return Window(first, max(min(ends), known + 1))

    def accept_refused(self, fewest: int) -> DecisionRecord | None:
        """Accept what the gate refused by the users' opinions at least ``fewest`` times in a series.

        Releases the batches from quarantine and retires the probes from before the first one.

        Returns:
            The acceptance, with the number of released samples; None, with nothing written, if there are fewer refusals.
        """
        with self.transaction() as connection:
            row = [each for each in self.refusals() if each.by_margin]
            if not row or len(row) < fewest:
                return None
            batches = [each.rollout_id for each in row]
            marks = ", ".join("?" for _ in batches)
            released = connection.execute(
                "UPDATE samples SET state = 'ready', rollout_id = NULL, reason = NULL"
                f" WHERE state = 'dropped' AND reason = ? AND rollout_id IN ({marks})",
                (QUARANTINE, *batches),
            ).rowcount
            last = connection.execute("SELECT COALESCE(MAX(number), 0) AS n FROM turns").fetchone()["n"]
            number = self._insert_decision(
                connection,
                rollout_id=row[0].rollout_id,
                kind="accept",
                weight_version="",
                why=f"a person accepted the change of {len(row)} refused batches; {released} samples are ready again",
                first_turn=row[-1].first_turn,
                last_turn=last,
            )
        (accepted,) = self.decisions("AND number = ?", (number,))
        return replace(accepted, samples=released)

    def quarantine(self, rollout_id: int) -> int:
        """Drop the samples of a batch that the gate refused; return their number. `accept_refused` releases them.

        If a person has accepted the refusal before its steps were undone, the samples are ready again instead.
        """
        with self.transaction() as connection:
            connection.execute("UPDATE forgotten_samples SET rollout_id = NULL WHERE rollout_id = ?", (rollout_id,))
            released = connection.execute(
                "SELECT 1 FROM decisions AS refused JOIN decisions AS accepted ON accepted.kind = 'accept'"
                " AND accepted.number > refused.number WHERE refused.kind = 'refused' AND refused.undone_at IS NULL"
                " AND refused.by_margin AND refused.rollout_id = ?",
                (rollout_id,),
            ).fetchone()
            if released is not None:
                connection.execute(
                    "UPDATE samples SET state = 'ready', rollout_id = NULL WHERE state = 'leased' AND rollout_id = ?",
                    (rollout_id,),
                )
                return 0
            return connection.execute(
                "UPDATE samples SET state = 'dropped', reason = ? WHERE state = 'leased' AND rollout_id = ?",
                (QUARANTINE, rollout_id),
            ).rowcount

    def decisions(self, condition: str = "ORDER BY number", parameters: tuple[Any, ...] = ()) -> list[DecisionRecord]:
        """Return the decisions that were not undone and meet the end of an SQL query, by default all, oldest first."""
        found = self.rows(
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
            )
            for row in found
        ]
