r"""Do tiny agents learn on a CPU, and what does a process reward add? All cells of set of tasks, reward and seed.

`python -m benchmarks.agents --json r.json` holds one run of `lab/agent_learning.py` for each cell, and compares held-out success
before and after training, with the outcome as reward and with a judge's votes beside it, at equal numbers of updates.

Guarantees: a finished run is a JSON file in ``--runs``, so the same command continues an interrupted benchmark and runs nothing
twice. A cell that was not run is null. Exit status 1 when a run fails; figures are recorded, not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import REPOSITORY, describe_machine
from benchmarks.personal_parts.records import write
from groundwork.command_line import new_output_file

sys.path.append(str(REPOSITORY / "openclaw-test"))
from lab.tiny_learning.sets import TASK_SETS, UPDATES, judges

PROGRAM = REPOSITORY / "lab" / "agent_learning.py"
RUNS = REPOSITORY / "benchmarks" / "baselines" / "agents"
FIELDS = ("success_before", "success_after")
Record = dict[str, Any]


class RunError(RuntimeError):
    """A run failed, or was made with other options; says what to do."""


@dataclass(frozen=True)
class Cell:
    """One run."""

    task: str
    process_reward: bool
    seed: int

    @property
    def name(self) -> str:
        """Of its record."""
        return f"{self.task}-{'process' if self.process_reward else 'outcome'}-seed{self.seed}"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.agents", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--json", required=True, type=new_output_file, help="file for the figures")
    add("--tasks", default=",".join(TASK_SETS), help="comma-separated (default: %(default)s)")
    add("--seeds", default="0,1,2", help="comma-separated (default: %(default)s)")
    add("--updates", type=int, help="optimizer steps of a run (default: the task's own)")
    add("--runs", type=Path, default=RUNS, help="folder of the runs' records (default: benchmarks/baselines/agents)")
    add("--only-report", action="store_true", help="run nothing; tell what the folder has")
    options = parser.parse_args(argv)
    options.tasks = options.tasks.split(",")
    if unknown := [name for name in options.tasks if name not in TASK_SETS]:
        parser.error(f"--tasks {unknown[0]}: known: {', '.join(TASK_SETS)}")
    try:
        options.seeds = [int(seed) for seed in options.seeds.split(",")]
    except ValueError:
        parser.error("--seeds: give whole numbers, such as 0,1,2")
    return options


def load(folder: Path, cell: Cell, updates: int) -> Record | None:
    """Return the record of a run; None if there is none.

    Raises:
        RunError: it had another number of updates.
    """
    path = folder / f"{cell.name}.json"
    if not path.is_file():
        return None
    record = json.loads(path.read_text())
    if record["updates"] != updates:
        raise RunError(f"{path} has {record['updates']} updates; give --updates {record['updates']} or another --runs")
    return record


def run(cell: Cell, updates: int, folder: Path) -> Record:
    """Run a cell in a process of its own, and write its record.

    Raises:
        RunError: it failed.
    """
    paths = [REPOSITORY, REPOSITORY / "slime", REPOSITORY / "openclaw-test"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    with tempfile.TemporaryDirectory(prefix="agents-") as place:
        report = Path(place) / "report.json"
        command = [sys.executable, str(PROGRAM), "--task", cell.task, "--seed", str(cell.seed), "--report", str(report)]
        command += ["--updates", str(updates), "--run-dir", str(Path(place) / "run")]
        command += ["--process-reward"] if cell.process_reward else []
        status = subprocess.run(command, cwd=REPOSITORY, env=environment, check=False).returncode
        if status != 0:
            raise RunError(
                f"{cell.name} ended with {status}; the same command tries it again, and keeps the runs that are done"
            )
        record = {**json.loads(report.read_text()), "machine": describe_machine(), "load": round(os.getloadavg()[2], 1)}
    write(folder / f"{cell.name}.json", record)
    return record


def figures(task: str, records: dict[Cell, Record], seeds: Sequence[int]) -> Record:
    """Return the means of one set of tasks, by reward; null where a seed was not run."""
    result: Record = {}
    for kind, judged in (("outcome", False), ("process", True)):
        found = [records[cell] for seed in seeds if (cell := Cell(task, judged, seed)) in records]
        unseen = [record["families"][record["unseen_family"]] for record in found]
        result[kind] = {
            "runs": f"{len(found)} of {len(seeds)}",
            **{field: mean([record[field] for record in found]) for field in FIELDS},
            "rise": mean([record["success_after"] - record["success_before"] for record in found]),
            "unseen_family_before": mean([each["before"] for each in unseen]),
            "unseen_family_after": mean([each["after"] for each in unseen]),
            "seconds": mean([record["seconds_total"] for record in found]),
            "infrastructure_failures": sum(record["infrastructure_failures"] for record in found) if found else None,
        }
    both = [
        records[Cell(task, True, seed)]["success_after"] - records[Cell(task, False, seed)]["success_after"]
        for seed in seeds
        if Cell(task, True, seed) in records and Cell(task, False, seed) in records
    ]
    return {**result, "process_minus_outcome": mean(both)}


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None without values."""
    return round(statistics.fmean(values), 4) if values else None


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    options = parse(argv)
    kinds = [
        (task, judged) for task in options.tasks for judged in ([False, True] if judges(TASK_SETS[task]) else [False])
    ]
    cells = [Cell(task, judged, seed) for seed in options.seeds for task, judged in kinds]
    records: dict[Cell, Record] = {}
    updates = {task: options.updates or UPDATES[task] for task in options.tasks}
    try:
        for cell in cells:
            found = load(options.runs, cell, updates[cell.task])
            if found is None and not options.only_report:
                print(f"{cell.name}: {len(records)} of {len(cells)} runs are done", flush=True)
                found = run(cell, updates[cell.task], options.runs)
            if found is not None:
                records[cell] = found
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command continues", file=sys.stderr)
        return 130
    told = {task: figures(task, records, options.seeds) for task in options.tasks}
    runs = {
        cell.name: {key: value for key, value in record.items() if key != "example"} for cell, record in records.items()
    }
    missing = [cell.name for cell in cells if cell not in records]
    write(options.json, {"updates": updates, "figures": told, "runs": runs, "not_run": missing})
    print(json.dumps(told, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
