"""The demo's progress: one display line, and one point of the learning curve per update."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from student import Tally

from openclaw.ledger.store import Ledger


@dataclass
class History:
    """The learning curve: after each update, the rates of the latest first replies."""

    points: list[dict[str, Any]] = field(default_factory=list)


def batches_done(ledger: Ledger) -> int:
    """Return the number of updates that are live, and of those that the gate refused."""
    return int(ledger.views.counts()["steps"]) + len(ledger.decisions.all("AND kind = 'refused'"))


class Watch:
    """Reads the ledger and the student's tally; a context manager for the display."""

    def __init__(
        self, ledger: Ledger, tally: Tally, updates: int, console: Console, earlier: list[dict[str, Any]]
    ) -> None:
        """``earlier``: the learning curve of the run's earlier parts; empty for a new run."""
        self._ledger, self._tally, self._updates, self._console = ledger, tally, updates, console
        self._started = time.monotonic()
        self.history = History(list(earlier))
        self.ready = 0
        self.steps = batches_done(ledger)
        self._progress = Progress(
            TextColumn("talking"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("updates, {task.fields[talks]} conversations, likes {task.fields[liked]} of the last replies"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("talking", total=updates, completed=self.steps, talks=0, liked="-")

    def __enter__(self) -> Watch:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    @property
    def done(self) -> bool:
        """Whether all updates are live or refused."""
        return self.steps >= self._updates

    def look(self) -> None:
        """Read the ledger and update the display."""
        steps = batches_done(self._ledger)
        self.ready = self._ledger.samples.ready_count()
        rate = self._tally.recent_rule_rate
        liked = "-" if rate is None else f"{rate:.0%}"
        if steps > self.steps:
            point = {
                "update": steps,
                "seconds": round(time.monotonic() - self._started, 1),
                "sessions": self._tally.sessions,
                "turns": self._tally.turns,
                "recent_rule_rate": rate,
            }
            self.history.points.append(point)
            if not self._console.is_terminal:
                self._console.print(
                    f"update {steps}/{self._updates}, after {self._tally.sessions} conversations: likes {liked} of the "
                    f"last {len(self._tally.recent)} first replies",
                    soft_wrap=True,
                )
        self.steps = steps
        self._progress.update(
            self._task,
            completed=steps,
            talks=self._tally.sessions,
            liked=liked,
        )
