"""Processes that take a training step when asked: the asking side."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.machine import REPOSITORY
from slime.arguments.process_environment import ALLOCATOR, EXPANDABLE

OURS, TRL = "benchmarks.trainer_parts.our_step", "benchmarks.trainer_parts.trl_step"


@dataclass(frozen=True)
class Plan:
    """What a side runs.

    Attributes:
        name: of the side.
        batches: the batches it is asked for.
        settings: what its program reads, as JSON.
        program: the module.
        python: the interpreter.
    """

    name: str
    batches: Sequence[str]
    settings: dict[str, Any]
    program: str = OURS
    python: str = sys.executable


class Side:
    """Owner of one process; ready when built. On a GPU its memory has expandable segments, as a training rank's."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self._log = folder / f"{plan.name}.log".replace(" ", "_").replace(",", "")
        settings = self._log.with_suffix(".json")
        settings.write_text(json.dumps(plan.settings))
        environment = {
            "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'slime'}",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [plan.python, "-m", plan.program, str(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=REPOSITORY,
                env=_environment() | environment,
            )

    def answer(self) -> dict[str, Any]:
        """Return the next answer.

        Raises:
            RuntimeError: the process ended; with the end of its log.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.plan.name} ended:\n{self._log.read_text()[-2000:]}")
        return json.loads(line)

    def ask(self, batch: str, *, weigh: bool = False) -> dict[str, Any]:
        """Let it take a step on ``batch`` and return what it measured."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"batch": batch, "weigh": weigh}) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _environment() -> dict[str, str]:
    """Return this process's variables without PYTHONPATH, and a rank's setting of torch's allocator if none is set."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    given = any(name in inherited for name in ALLOCATOR)
    return inherited if given else inherited | {ALLOCATOR[0]: f"{EXPANDABLE}:True"}


def run_in_turn(plans: Sequence[Plan], folder: Path, rounds: int) -> dict[str, dict[str, dict[str, Any]]]:
    """Let the sides of ``plans`` take steps in turn, batch after batch; return figures by side and batch.

    Each batch has a warm-up, ``rounds`` measured steps, and one step for the memory. Every other round goes backwards, so that
    no side always follows the same one.

    Returns:
        What a side says of itself at its start, and ``seconds`` (median), ``all_seconds``, ``all_cpu_seconds``, ``peak_bytes`` of each.
    """
    with ExitStack() as stack:
        sides = [stack.enter_context(Side(plan, folder)) for plan in plans]
        about = {side.plan.name: side.answer() for side in sides}
        batches = dict.fromkeys(batch for side in sides for batch in side.plan.batches)
        work = [(side, batch) for batch in batches for side in sides if batch in side.plan.batches]
        for side, batch in work:
            side.ask(batch)
        took: dict[tuple[str, str], list[dict[str, float]]] = {(side.plan.name, batch): [] for side, batch in work}
        for number in range(rounds):
            for side, batch in work if number % 2 == 0 else reversed(work):
                took[side.plan.name, batch].append(side.ask(batch))
        found: dict[str, dict[str, dict[str, Any]]] = {plan.name: {} for plan in plans}
        for side, batch in work:
            steps = took[side.plan.name, batch]
            found[side.plan.name][batch] = {
                **about[side.plan.name],
                "seconds": statistics.median(step["seconds"] for step in steps),
                **{f"all_{name}": [round(step[name], 4) for step in steps] for name in ("seconds", "cpu_seconds")},
                **side.ask(batch, weigh=True),
            }
        return found
