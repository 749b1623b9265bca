"""Records of runs: one JSON file each, so that an interrupted benchmark continues where it stopped.

Guarantees: a record is written whole or not at all. A record of other sizes is never mixed with those of this benchmark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import REPOSITORY, describe_machine
from benchmarks.personal_parts.matrix import Cell

Record = dict[str, Any]
PROGRAM = REPOSITORY / "openclaw-test" / "personal_run.py"


class OtherSizesError(RuntimeError):
    """A record in the folder was measured with other sizes; says what to type."""


class RunError(RuntimeError):
    """A run failed; its last lines are in the message."""


def load(folder: Path, cell: Cell, sizes: Mapping[str, Any]) -> Record | None:
    """Return the record of a run, None if there is none.

    Raises:
        OtherSizesError: it was measured with other sizes.
    """
    path = folder / f"{cell.name}.json"
    if not path.is_file():
        return None
    record = json.loads(path.read_text())
    found = {name: record[name] for name in sizes}
    if found != dict(sizes):
        differ = sorted(name for name in sizes if found[name] != sizes[name])
        raise OtherSizesError(
            f"{path} was measured with {', '.join(f'{name}={found[name]}' for name in differ)}, not "
            f"{', '.join(f'{name}={sizes[name]}' for name in differ)}; give the same options, or another folder: --runs FOLDER"
        )
    return record


def run(cell: Cell, options: Sequence[str], folder: Path) -> Record:
    """Run a cell in a process of its own, write its record, and return it.

    Args:
        cell: the run.
        options: of `personal_run.py`: sizes and form.
        folder: for the record; the run's own files go to a temporary folder and are removed.

    Raises:
        RunError: it failed.
    """
    paths = [REPOSITORY, REPOSITORY / "slime", REPOSITORY / "openclaw-test"]
    inherited = os.environ.get("PYTHONPATH")
    variables = dict(cell.arm.variables) if cell.arm else {}
    environment = {**os.environ, **variables}
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, paths), *([inherited] if inherited else [])])
    with tempfile.TemporaryDirectory(prefix="personal-") as place:
        report = Path(place) / "report.json"
        command = [sys.executable, str(PROGRAM), "--method", cell.method, "--users", ",".join(cell.files)]
        command += ["--seed", str(cell.seed), "--report", str(report), "--run-dir", str(Path(place) / "run"), *options]
        command += cell.arm.flags if cell.arm else ()
        _follow(cell, command, environment)
        found = json.loads(report.read_text())
    record = {**found, "form": cell.form, "arm": cell.arm.name if cell.arm else None, "variables": variables}
    record["machine"] = describe_machine()
    write(folder / f"{cell.name}.json", record)
    return record


def _follow(cell: Cell, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a command and print its lines behind the cell's name; two runs may do so at once.

    Raises:
        RunError: it failed.
    """
    lines: list[str] = []
    with subprocess.Popen(
        command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            print(f"{cell.name}: {line}", end="", flush=True)
    if process.returncode != 0:
        raise RunError(f"{cell.name} failed with exit code {process.returncode}:\n{''.join(lines[-5:])}")


def write(path: Path, value: Any) -> None:
    """Write JSON whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.part")
    draft.write_text(json.dumps(value, indent=1) + "\n")
    draft.replace(path)
