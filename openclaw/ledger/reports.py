"""Read-only views of the ledger: counts by state and reason, and each turn with its verdict, samples and step.

Guarantees: read-only; each row is a consistent snapshot.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from openclaw.ledger.codec import decode_sample, decode_turn, decode_verdict
from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.ledger.overview import OverviewQueries
from openclaw.ledger.records import BLAMED, SampleState, Turn, Verdict
from openclaw.ledger.samples import STATED
from openclaw.owners import owner_of, root
from slime.utils.types import Sample

_PAGE = 200
_TURNS = (
    "SELECT turns.*, verdicts.verdict, teacher_log_probs, logs.verdict AS kept FROM turns"
    " LEFT JOIN verdicts ON verdicts.turn_id = turns.id LEFT JOIN logs ON logs.turn_id = turns.id"
)
"""Turns with their verdict, and the one that a log had."""
JUDGED = 64


@dataclass(frozen=True)
class SampleRecord:
    """A sample and its outcome; ``weight_version`` and ``live_at`` are set once its step is live."""

    id: int
    turn_id: str
    sample: Sample
    state: SampleState
    reason: str | None
    rollout_id: int | None
    weight_version: str | None
    live_at: float | None


@dataclass(frozen=True)
class TurnRecord:
    """A turn with its verdict and samples; ``kept`` is the verdict that its log had."""

    turn: Turn
    verdict: Verdict | None
    samples: list[SampleRecord]
    judge_attempts: int
    judge_error: str | None
    kept: Verdict | None = None


@dataclass(frozen=True)
class JudgeError:
    """Why turns stay pending: the newest such turn with its error, and how many turns there are.

    Attributes:
        turn_id: the newest turn that the judge side failed on.
        error: what its last attempt raised.
        attempts: its failed attempts.
        turns: number of pending turns with a failed attempt.
    """

    turn_id: str
    error: str
    attempts: int
    turns: int

    def __str__(self) -> str:
        turns = "1 turn stays" if self.turns == 1 else f"{self.turns} turns stay"
        times = "1 time" if self.attempts == 1 else f"{self.attempts} times"
        return f"{turns} unjudged; {self.turn_id} failed {times}, last with {self.error}"


@dataclass(frozen=True)
class OwnerSamples:
    """An owner's samples, children's included: ``ready``, in a step (``used``), and ``stated``: scored by feedback."""

    owner: str
    ready: int
    used: int
    stated: int


class ReportQueries(OverviewQueries):
    """The ledger's queries for tests, the inspect command and reports."""

    def judge_error(self) -> JudgeError | None:
        """Return the newest failure of the judge side that no later attempt has mended; None if there is none."""
        found = self.rows(
            "SELECT id, judge_error, judge_attempts, COUNT(*) OVER () AS n FROM turns"
            " WHERE state = 'pending' AND judge_error IS NOT NULL ORDER BY number DESC LIMIT 1"
        )
        return next((JudgeError(row["id"], row["judge_error"], row["judge_attempts"], row["n"]) for row in found), None)

    def degenerate_share(self, reasons: Collection[str]) -> float:
        """Return the share of the last `JUDGED` judged turns that one of ``reasons`` kept from praise; 0 without any."""
        found = self.rows(
            "SELECT reason, (SELECT MAX(json_extract(sample, '$.metadata.' || ?)) FROM samples WHERE turn_id = turns.id)"
            " AS blamed FROM turns WHERE state = 'judged' ORDER BY number DESC LIMIT ?",
            (BLAMED, JUDGED),
        )
        bad = sum(row["reason"] in reasons or row["blamed"] in reasons for row in found)
        return bad / len(found) if found else 0.0

    def counts(self) -> dict[str, Any]:
        """Return counts of turns and samples by state, and by reason for not being trained.

        Keys: ``turns``, ``samples`` {state: n}; ``turn_reasons``, ``sample_reasons`` {reason: n}; ``sessions``,
        ``steps``, ``scored`` (turns that came as text), ``judge_attempts_failed``: n.
        """

        def grouped(sql: str) -> dict[str, int]:
            return {row["name"]: row["n"] for row in self.rows(sql)}

        def single(sql: str) -> int:
            return self.rows(sql)[0]["n"]

        by_state = "SELECT state AS name, COUNT(*) AS n FROM {0} GROUP BY state ORDER BY state"
        by_reason = "SELECT reason AS name, COUNT(*) AS n FROM {0} WHERE reason IS NOT NULL GROUP BY reason ORDER BY 1"
        return {
            "turns": grouped(by_state.format("turns")),
            "samples": grouped(by_state.format("samples")),
            "turn_reasons": grouped(by_reason.format("turns")),
            "sample_reasons": grouped(by_reason.format("samples")),
            "sessions": single("SELECT COUNT(*) AS n FROM sessions"),
            "steps": single("SELECT COUNT(*) AS n FROM steps WHERE undone_at IS NULL"),
            "scored": single("SELECT COUNT(*) AS n FROM turns WHERE scored = 1"),
            "judge_attempts_failed": single("SELECT COALESCE(SUM(judge_attempts), 0) AS n FROM turns"),
        }

    def owner_samples(self) -> list[OwnerSamples]:
        """Return the samples of each owner that has any, by name; dropped samples do not count."""
        found = self.rows(
            f"SELECT turns.session_id, samples.state, {STATED} AS stated, COUNT(*) AS n FROM samples"
            " JOIN turns ON turns.id = samples.turn_id WHERE samples.state != 'dropped' GROUP BY 1, 2, 3"
        )
        counts: dict[str, Counter[str]] = {}
        for row in found:
            owner = counts.setdefault(root(owner_of(row["session_id"])), Counter())
            owner["ready" if row["state"] == "ready" else "used"] += row["n"]
            owner["stated"] += row["n"] if row["stated"] else 0
        return [OwnerSamples(name, n["ready"], n["used"], n["stated"]) for name, n in sorted(counts.items())]

    def sample_records(self, turn_id: str | None = None) -> list[SampleRecord]:
        """Return all samples, or those of one turn, oldest first; turns of an episode share samples."""
        of_turn = "WHERE samples.turn_id = ? OR samples.id = (SELECT segment FROM turns WHERE id = ?)"
        condition, parameters = (of_turn, (turn_id, turn_id)) if turn_id else ("", ())
        found = self.rows(
            "SELECT samples.*, steps.weight_version, steps.live_at FROM samples LEFT JOIN steps"
            " ON steps.rollout_id = samples.rollout_id AND steps.undone_at IS NULL"
            f" AND samples.state IN ('leased', 'trained') {condition} ORDER BY samples.id",
            parameters,
        )
        return [self._sample_record(row) for row in found]

    def export_turns(self, session_id: str | None = None) -> Iterator[TurnRecord]:
        """Yield every turn in the order it was recorded, or those of one session."""
        condition, parameters = ("AND session_id = ?", (session_id,)) if session_id else ("", ())
        last = 0
        while True:
            found = self.rows(
                f"{_TURNS} WHERE number > ? {condition} ORDER BY number LIMIT {_PAGE}",
                (last, *parameters),
            )
            if not found:
                return
            for row in found:
                last = row["number"]
                yield self._turn_record(row)

    def turn_record(self, turn_id: str) -> TurnRecord:
        """Return one turn; raise UnknownRecordError if the ledger does not hold it."""
        found = self.rows(f"{_TURNS} WHERE turns.id = ?", (turn_id,))
        if not found:
            raise UnknownRecordError(f"{self.path} holds no turn {turn_id!r}")
        return self._turn_record(found[0])

    def session_ids(self) -> list[str]:
        """Return the sessions in the order of their first turn."""
        found = self.rows("SELECT session_id FROM turns GROUP BY session_id ORDER BY MIN(number)")
        return [row["session_id"] for row in found]

    def step_records(self) -> list[dict[str, Any]]:
        """Return the steps that were not undone, oldest first, with their numbers of samples, deleted ones included."""
        used = self.samples_of_steps()
        found = self.rows("SELECT * FROM steps WHERE undone_at IS NULL ORDER BY number")
        names = ("rollout_id", "weight_version", "trained_at", "live_at")
        return [{**{name: row[name] for name in names}, "samples": used[row["rollout_id"]]} for row in found]

    def _turn_record(self, row: sqlite3.Row) -> TurnRecord:
        return TurnRecord(
            turn=decode_turn(row),
            verdict=None if row["verdict"] is None else decode_verdict(row),
            samples=self.sample_records(row["id"]),
            judge_attempts=row["judge_attempts"],
            judge_error=row["judge_error"],
            kept=None if row["kept"] is None else Verdict.from_dict(json.loads(row["kept"])),
        )

    def _sample_record(self, row: sqlite3.Row) -> SampleRecord:
        return SampleRecord(
            id=row["id"],
            turn_id=row["turn_id"],
            sample=decode_sample(row),
            state=row["state"],
            reason=row["reason"],
            rollout_id=row["rollout_id"],
            weight_version=row["weight_version"],
            live_at=row["live_at"],
        )
