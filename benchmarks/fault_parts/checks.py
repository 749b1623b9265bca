"""Checks ledger and checkpoint from outside after every kill.

Guarantees: read-only, over its own connection, on one snapshot of the ledger at a time. It remembers which turns were
judged, so it finds judged turns that disappear or lose their verdict.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fault_parts.trainer import Weights


@dataclass
class View:
    """A snapshot: turn id to (state, reason), sample id to (turn id, state), and turns with a verdict."""

    turns: dict[str, tuple[str, str | None]]
    samples: dict[int, tuple[str, str]]
    verdicts: set[str]

    @classmethod
    def read(cls, path: Path) -> View:
        """Read it."""
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as connection:
            connection.execute("BEGIN")
            turns = {row[0]: (row[1], row[2]) for row in connection.execute("SELECT id, state, reason FROM turns")}
            samples = {row[0]: (row[1], row[2]) for row in connection.execute("SELECT id, turn_id, state FROM samples")}
            verdicts = {row[0] for row in connection.execute("SELECT turn_id FROM verdicts")}
        return cls(turns, samples, verdicts)

    def judged(self) -> set[str]:
        """Ids of the turns that are judged."""
        return {turn for turn, (state, _) in self.turns.items() if state == "judged"}


@dataclass
class Findings:
    """Ids of violations; the project promises empty lists."""

    judged_lost: list[str] = field(default_factory=list)
    trained_twice: list[int] = field(default_factory=list)
    trained_unlike_checkpoint: list[int] = field(default_factory=list)
    acknowledged_lost: list[str] = field(default_factory=list)
    feedback_lost: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """Return the number of distinct ids of each kind."""
        return {name: len(set(found)) for name, found in vars(self).items()}


class Checker:
    """Owns its observations so far."""

    def __init__(self, ledger: Path, checkpoint: Callable[[], Weights]) -> None:
        """Create a checker; ``checkpoint`` returns the samples of the newest checkpoint."""
        self.findings = Findings()
        self._ledger = ledger
        self._checkpoint = checkpoint
        self._judged: set[str] = set()

    def after_kill(self, replies: set[str], answered: set[str]) -> None:
        """Check the ledger while everything runs.

        Args:
            replies: turns whose reply a client has read to its end.
            answered: turns whose next state was acknowledged.
        """
        replies, answered = set(replies), set(answered)
        before = self._checkpoint()
        view = View.read(self._ledger)
        after = self._checkpoint()
        found = self.findings
        judged = view.judged()
        with_sample = {turn for turn, _ in view.samples.values()}
        found.judged_lost += sorted(self._judged - judged)
        found.judged_lost += [
            turn
            for turn in judged
            if turn not in view.verdicts or (view.turns[turn][1] is None and turn not in with_sample)
        ]
        self._judged |= judged
        found.trained_twice += [sample for sample, count in Counter(after.trained).items() if count > 1]
        found.trained_twice += [sample for sample in before.trained if view.samples[sample][1] == "ready"]
        trained = {sample for sample, (_, state) in view.samples.items() if state == "trained"}
        found.trained_unlike_checkpoint += sorted(trained - set(after.trained))
        found.acknowledged_lost += sorted(replies - set(view.turns))
        kept = {turn for turn, (state, _) in view.turns.items() if state in ("pending", "judged")}
        found.feedback_lost += sorted(answered - kept)

    def at_the_end(self, answered: set[str]) -> View:
        """Check the ledger after everything has stopped and the ledger is reconciled with the checkpoint."""
        with closing(sqlite3.connect(self._ledger)) as connection:
            self.findings.damaged += [row[0] for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
        view, weights = View.read(self._ledger), self._checkpoint()
        states = {state for _, state in view.samples.values()}
        self.findings.damaged += [f"samples in state {state}" for state in sorted(states - {"ready", "trained"})]
        trained = {sample for sample, (_, state) in view.samples.items() if state == "trained"}
        self.findings.trained_unlike_checkpoint += sorted(trained ^ set(weights.trained))
        self.findings.feedback_lost += sorted(turn for turn in answered if view.turns[turn][0] != "judged")
        return view


def journal_lines(path: Path) -> set[str]:
    """Return the complete lines of a journal, whose last line may be truncated."""
    text = path.read_text() if path.exists() else ""
    return set(text[: text.rfind("\n") + 1].split())


def say_at_once(text: str) -> None:
    """Print a line without buffering."""
    print(text, flush=True)


def write_json(path: Path, document: dict) -> None:
    """Write a report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
