"""What the checks look at: the newest turns and samples, the metrics, the notes and the logs of a run."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from groundwork.paused import Paused
from openclaw.ledger.decisions import DecisionRecord
from openclaw.ledger.store import Ledger
from openclaw.ledger.views import GateDecision, JudgeError, SampleFacts, TurnFacts
from openclaw.messages.classify import Asked, side_kind
from openclaw.runs.folder import RunFolder
from openclaw.runs.metrics_file import MISMATCH, Series, read_series
from openclaw.runtime.process import RESTARTING

RECENT = 1000
"""How many of the newest turns count, side turns included."""
SIDES_READ = 50
LOG_TAIL_BYTES = 2**20
LOGS = ("driver.log", "logs/processes.log")
RESUMED = "===== "
"""How a line begins that marks the begin of a run that resumes (`slime.utils.run_logs`)."""
METRICS = frozenset({MISMATCH, "openclaw/runtime_restarts", "openclaw/runtime_frozen"})


@dataclass(frozen=True)
class Disk:
    """Bytes of the disk that holds the ledger."""

    free: int
    total: int


@dataclass
class Look:
    """What is known about a run; ``turns`` and ``samples`` are the newest ones, oldest first."""

    run: RunFolder
    turns: list[TurnFacts]
    samples: list[SampleFacts]
    sides: Counter[str]
    judge_error: JudgeError | None
    decisions: list[GateDecision]
    certified: DecisionRecord | None
    series: Mapping[str, Series]
    paused: Paused | None
    people_paused: Mapping[str, Paused]
    restarts: int
    disk: Disk
    settings: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def mains(self) -> list[TurnFacts]:
        """The main turns of people; those of an agent's episode are judged otherwise, and imported ones not at all."""
        others = ("episode", "imported")
        return [turn for turn in self.turns if turn.kind == "main" and not (turn.reason or "").startswith(others)]

    @cached_property
    def judged(self) -> list[TurnFacts]:
        """The main turns that a judge or a person scored, or that a judge was asked about."""
        return [turn for turn in self.mains if turn.state == "judged" and (turn.votes or turn.score is not None)]

    @cached_property
    def reasons(self) -> Counter[str]:
        """Why main turns gave no sample."""
        return Counter(turn.reason for turn in self.mains if turn.reason is not None)

    @property
    def last_at(self) -> float:
        """When the newest turn ended; 0 without any."""
        return max((turn.finished_at for turn in self.turns), default=0.0)


def look(run: RunFolder, disk: Callable[[Path], Disk]) -> Look:
    """Look at a run.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    with closing(run.open_ledger()) as ledger:
        after = max(0, ledger.views.newest_turn() - RECENT)
        turns = list(ledger.views.turn_facts(after=after))
        known = {turn.id for turn in turns}
        return Look(
            run=run,
            turns=turns,
            samples=[item for item in ledger.views.sample_facts() if item.turn_id in known and not item.of_practice],
            sides=_sides(ledger),
            judge_error=ledger.views.judge_error(),
            decisions=ledger.views.gate_decisions(),
            certified=ledger.decisions.last_certified(),
            series=read_series(run.metrics_path, METRICS.__contains__),
            paused=run.paused,
            people_paused=run.people_paused,
            restarts=_restarts(run.folder),
            disk=disk(run.ledger_path.parent),
            settings=run.arguments,
        )


def real_disk(folder: Path) -> Disk:
    """Return the space of the disk that holds a folder."""
    usage = shutil.disk_usage(folder)
    return Disk(usage.free, usage.total)


def _sides(ledger: Ledger) -> Counter[str]:
    """Return what the newest side turns are by their texts; ``stated`` if only the client says so."""
    side_requests = ledger.views.side_requests(SIDES_READ)
    return Counter(side_kind(messages, Asked(tools)) or "stated" for messages, tools in side_requests)


def _restarts(folder: Path | None) -> int:
    """Return how often the newest driver has restarted the runtime process, by its logs."""
    restarted = re.compile(re.escape(RESTARTING) + r" (\d+)\)")
    most = 0
    for log in LOGS if folder is not None else ():
        text = _tail(Path(folder or "", log)).rpartition(RESUMED)[2]
        most = max([most, *map(int, restarted.findall(text))])
    return most


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
