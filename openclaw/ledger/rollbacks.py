"""Rollbacks in the ledger: which batches the weights of a checkpoint have learned from, and what becomes of the others.

Guarantees: after `RollbackQueries.record_rollback` the trained samples are those that the weights which serve have learned from:
later ones are dropped with the reason `ROLLBACK`, and those that an earlier rollback had dropped count as trained again if these
weights have them (somebody went forward again). Told again about the same rollback, one decision is left. Tombstones of samples
that were forgotten after a rollback dropped them count for no step, even if somebody goes forward again.

The line of a checkpoint: a rollback at batch f to batch t writes its weights into the checkpoint of f, so later checkpoints have
learned from the batches after f and from what the checkpoint of t had learned from.
"""

from __future__ import annotations

import json
import sqlite3
from typing import NamedTuple

from openclaw.ledger.decisions import ROLLBACK, SERVING, DecisionQueries

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


def line_of(connection: sqlite3.Connection, rollout_id: int) -> Line:
    """Return the line of the checkpoint of a batch."""
    found = connection.execute(
        f"SELECT rollout_id, weight_version, json_extract(metrics, '$.\"{BACK_TO}\"') AS back FROM decisions"
        " WHERE kind = 'rollback' AND undone_at IS NULL ORDER BY number"
    ).fetchall()
    parts, rollbacks, end = list[tuple[int, int]](), list[tuple[int, str]](), rollout_id
    for row in reversed(found):
        if row["rollout_id"] > end:
            continue
        parts.append((row["rollout_id"], end))
        rollbacks.append((row["rollout_id"], row["weight_version"]))
        if row["back"] is None:
            return Line(tuple(parts), tuple(rollbacks), row["rollout_id"])
        end = int(row["back"])
    return Line((*parts, (-1, end)), tuple(rollbacks), -1)


def align(connection: sqlite3.Connection, line: Line, last: int, at: float) -> int:
    """Let samples, steps and decisions up to the batch ``last`` say what ``line`` has learned from; return how many were dropped."""
    known, has = f"rollout_id > {line.known} AND rollout_id <= {last}", line.has("rollout_id")
    again = connection.execute(
        f"SELECT id FROM samples WHERE state = 'dropped' AND reason = ? AND {known} AND {has}", (ROLLBACK,)
    ).fetchall()
    for state in ("ready", "leased", "trained"):  # the way that a sample may go
        connection.executemany(
            "UPDATE samples SET state = ?, reason = NULL WHERE id = ?", [(state, row["id"]) for row in again]
        )
    dropped = connection.execute(
        f"UPDATE samples SET state = 'dropped', reason = ? WHERE state IN ('leased', 'trained') AND {known} AND NOT {has}",
        (ROLLBACK,),
    ).rowcount
    connection.execute(f"UPDATE forgotten_samples SET rollout_id = NULL WHERE {known} AND NOT {has}")
    connection.execute(
        f"UPDATE steps SET undone_at = ? WHERE undone_at IS NULL AND {known} AND NOT {has} AND NOT {line.is_rollback()}",
        (at,),
    )
    connection.execute(
        f"UPDATE decisions SET undone_at = ? WHERE undone_at IS NULL AND kind IN ('start', 'step') AND {known} AND NOT {has}",
        (at,),
    )
    _revive(connection, known, has, line.is_rollback())
    return dropped


def _revive(connection: sqlite3.Connection, known: str, has: str, is_rollback: str) -> None:
    """Let the newest step and decision of batches that are trained again count again."""
    trained = "EXISTS (SELECT 1 FROM samples WHERE samples.rollout_id = {0}.rollout_id AND samples.state = 'trained')"
    of_rollback = (
        "EXISTS (SELECT 1 FROM decisions WHERE kind = 'rollback' AND decisions.rollout_id = steps.rollout_id"
        " AND decisions.weight_version = steps.weight_version)"
    )
    live = "rollout_id IN (SELECT rollout_id FROM {0} WHERE undone_at IS NULL{1})"
    connection.execute(
        "UPDATE steps SET undone_at = NULL WHERE number IN (SELECT MAX(number) FROM steps"
        f" WHERE {known} AND ({has} AND {trained.format('steps')} AND NOT {of_rollback} OR {is_rollback})"
        f" GROUP BY rollout_id) AND NOT {live.format('steps', '')}"
    )
    connection.execute(
        "UPDATE decisions SET undone_at = NULL WHERE kind = 'step' AND number IN (SELECT MAX(number) FROM decisions"
        f" WHERE {_STEP_OR_REFUSED} AND {known} AND {has} AND {trained.format('decisions')} GROUP BY rollout_id)"
        f" AND NOT {live.format('decisions', f' AND {_STEP_OR_REFUSED}')}"
    )


class RollbackQueries(DecisionQueries):
    """The ledger's queries for going back."""

    def record_rollback(self, to_rollout_id: int, from_rollout_id: int, weight_version: str, at: float) -> int:
        """Record that the weights after ``to_rollout_id`` serve again, as ``weight_version``, in place of later ones.

        Args:
            to_rollout_id: last batch in these weights; -1 for the initial ones.
            from_rollout_id: last batch in the weights that served before.
            weight_version: under which they serve now.
            at: since when, seconds since the epoch.

        Returns:
            The number of samples that they have not learned from any more.
        """
        with self.transaction() as connection:
            earlier = self._told_before(connection, to_rollout_id, from_rollout_id, weight_version, at)
            line = line_of(connection, to_rollout_id)
            old = connection.execute(
                "SELECT weight_version FROM steps WHERE rollout_id <= ? AND rollout_id NOT IN"
                " (SELECT rollout_id FROM decisions WHERE kind = 'refused' AND undone_at IS NULL)"
                " ORDER BY rollout_id DESC, number DESC LIMIT 1",
                (to_rollout_id,),
            ).fetchone()
            dropped = align(connection, line, from_rollout_id, at)
            connection.execute(
                "UPDATE steps SET undone_at = ? WHERE undone_at IS NULL AND rollout_id = ?", (at, from_rollout_id)
            )
            connection.execute(
                "INSERT INTO steps (rollout_id, weight_version, trained_at, live_at) VALUES (?, ?, ?, ?)",
                (from_rollout_id, weight_version, at, at),
            )
            back = "the initial weights" if old is None else f"version {old['weight_version']}"
            unlearned = earlier + dropped
            self._insert_decision(
                connection,
                rollout_id=from_rollout_id,
                kind="rollback",
                weight_version=weight_version,
                why=f"back to {back}; {unlearned} samples are unlearned",
                metrics=json.dumps({BACK_TO: to_rollout_id, UNLEARNED: unlearned}),
            )
        return dropped

    def _told_before(
        self, connection: sqlite3.Connection, to_rollout_id: int, from_rollout_id: int, version: str, at: float
    ) -> int:
        """Undo the decision of the same rollback if a process died behind it; return how many samples it had dropped."""
        newest = connection.execute(
            f"SELECT * FROM decisions WHERE undone_at IS NULL AND kind IN {SERVING} ORDER BY number DESC LIMIT 1"
        ).fetchone()
        if newest is None or newest["kind"] != "rollback" or newest["rollout_id"] != from_rollout_id:
            return 0
        numbers = json.loads(newest["metrics"])
        if newest["weight_version"] != version and numbers.get(BACK_TO) != to_rollout_id:
            return 0
        connection.execute("UPDATE decisions SET undone_at = ? WHERE number = ?", (at, newest["number"]))
        return int(numbers.get(UNLEARNED, 0)) if numbers.get(BACK_TO) == to_rollout_id else 0
