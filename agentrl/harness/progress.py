"""Show a driver on the terminal: a line per run and group, a progress bar, a table at the end."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from agentrl.harness.run import Ended
from agentrl.protocol import Ending


@dataclass
class Tally:
    """What a driver has counted.

    Attributes:
        finished: groups whose members all have a reward.
        given_up: groups that lack members.
        scores: of the rewarded runs.
        rewards: of the same runs.
        lost: runs that the infrastructure spoiled.
        spared: spare runs that were ended, because their group was full.
        seconds: of the rewarded runs.
    """

    finished: int = 0
    given_up: int = 0
    scores: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    lost: int = 0
    spared: int = 0
    seconds: list[float] = field(default_factory=list)

    def add(self, ended: Ended) -> None:
        """Count a run."""
        if ended.reward is None or ended.score is None:
            self.lost += 1
            return
        self.rewards.append(ended.reward)
        self.scores.append(ended.score)
        self.seconds.append(ended.seconds)

    @property
    def solved(self) -> int:
        """Runs with a score of 1."""
        return solved(self.scores)


class ProgressDisplay:
    """A context manager for the display; lines go above the bar."""

    def __init__(self, console: Console, total: int | None, finished: int = 0) -> None:
        """``total``: groups of the whole schedule, None without an end; ``finished``: by earlier processes."""
        self._console = console
        self.tally = Tally()
        self._progress = Progress(
            TextColumn("groups"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[solved]} of {task.fields[runs]} runs solved"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task("groups", total=total, completed=finished, solved=0, runs=0)

    def __enter__(self) -> ProgressDisplay:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def run(self, group: str, place: str, ended: Ended) -> None:
        """Print what became of a run, and count it."""
        self.tally.add(ended)
        if ended.reward is None:
            self.say(f"{group}, {place}: lost after {ended.seconds:.1f} s: {ended.problem}")
        else:
            late = ", its time was over" if ended.ending is Ending.PROGRAM_SECONDS else ""
            outcome = f"{ended.status}, score {ended.score:g}, reward {ended.reward:g}, {ended.turns} turns"
            self.say(f"{group}, {place}: {outcome}, {ended.seconds:.1f} s{late}")
        self._progress.update(self._bar, solved=self.tally.solved, runs=len(self.tally.scores))

    def finished(self, group: str, rewards: list[float], scores: list[float]) -> None:
        """Print that all members of a group have a reward."""
        self.tally.finished += 1
        self.say(f"{group}: mean reward {statistics.fmean(rewards):.3f}, solved {solved(scores)} of {len(scores)}")
        self._progress.advance(self._bar)

    def spared(self, group: str, count: int) -> None:
        """Print how many spare runs of a full group were ended."""
        self.tally.spared += count
        if count:
            self.say(f"{group}: full, {count} spare runs ended")

    def given_up(self, group: str, why: str, rewarded: int) -> None:
        """Print that members of a group are missing."""
        self.tally.given_up += 1
        self.say(f"{group}: given up with {rewarded} rewarded members: {why}")
        self._progress.advance(self._bar)

    def summary(self) -> None:
        """Print the table."""
        tally, table = self.tally, Table("", "number")
        rows = {"groups finished": tally.finished, "groups given up": tally.given_up}
        rows |= {"runs rewarded": len(tally.scores), "runs lost": tally.lost, "runs solved": tally.solved}
        rows |= {"spare runs ended": tally.spared} if tally.spared else {}
        for name, count in rows.items():
            table.add_row(name, str(count))
        if tally.scores:
            table.add_row("solved share", f"{tally.solved / len(tally.scores):.3f}")
            table.add_row("mean reward", f"{statistics.fmean(tally.rewards):.3f}")
            table.add_row("median seconds of a run", f"{statistics.median(tally.seconds):.1f}")
        self._console.print(table)


def solved(scores: list[float]) -> int:
    """Return how many scores are at least 1."""
    return sum(score >= 1 for score in scores)
