"""Records of runs: one JSON file each, so that an interrupted benchmark continues where it stopped.

Guarantees: a record is written whole or not at all. A record of other sizes is never mixed with those of this benchmark.
`Programs` ends the runs that it started, and nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import REPOSITORY, describe_machine
from benchmarks.personal_parts.matrix import Cell
from groundwork.private_files import write_output

Record = dict[str, Any]
PROGRAM = REPOSITORY / "openclaw-test" / "personal_run.py"
STOP_SECONDS = 120.0
"""How long a run may take to stop its engines, Ray and trainer."""


class OtherSizesError(RuntimeError):
    """A record in the folder was measured with other sizes; says what to type."""


class RunError(RuntimeError):
    """A run failed; its last lines are in the message."""


class Programs:
    """The programs of the runs that go on, each in a session of its own, so that a terminal's Ctrl-C reaches them once."""

    def __init__(self) -> None:
        self._lock, self._running, self._stopped = threading.Lock(), set[subprocess.Popen[str]](), False

    def follow(self, cell: Cell, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Run a command and print its lines behind the cell's name; two runs may do so at once.

        Raises:
            RunError: it failed, or `stop` was called.
        """
        lines: list[str] = []
        with self._start(cell, command, environment) as process:
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    lines.append(line)
                    print(f"{cell.name}: {line}", end="", flush=True)
                process.wait()
            finally:
                with self._lock:
                    self._running.discard(process)
        if process.returncode != 0:
            raise RunError(f"{cell.name} failed with exit code {process.returncode}:\n{''.join(lines[-5:])}")

    def _start(self, cell: Cell, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
        with self._lock:
            if self._stopped:
                raise RunError(f"{cell.name} was not started, because the benchmark is stopped")
            process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            self._running.add(process)
        return process

    def stop(self) -> None:
        """Ask the programs to stop what they started and end; kill those that do not within `STOP_SECONDS`."""
        with self._lock:
            self._stopped, running = True, list(self._running)
        for process in running:
            process.terminate()
        latest = time.monotonic() + STOP_SECONDS
        for process in running:
            try:
                process.wait(max(0.0, latest - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()


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


def run(cell: Cell, options: Sequence[str], folder: Path, programs: Programs) -> Record:
    """Run a cell in a process of its own, write its record, and return it.

    Args:
        cell: the run.
        options: of `personal_run.py`: sizes and form.
        folder: for the record; the run's own files go to a temporary folder and are removed.
        programs: runs it.

    Raises:
        RunError: it failed.
    """
    paths = [REPOSITORY, REPOSITORY / "slime", REPOSITORY / "openclaw-test"]
    inherited = os.environ.get("PYTHONPATH")
    environment = {**os.environ, **cell.variables}
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, paths), *([inherited] if inherited else [])])
    with tempfile.TemporaryDirectory(prefix="personal-") as place:
        report = Path(place) / "report.json"
        command = [sys.executable, str(PROGRAM), "--method", cell.method, "--users", ",".join(cell.files)]
        command += ["--seed", str(cell.seed), "--report", str(report), "--run-dir", str(Path(place) / "run"), *options]
        command += cell.arm.flags if cell.arm else ()
        programs.follow(cell, command, environment)
        found = json.loads(report.read_text())
    record = {**found, "form": cell.form, "arm": cell.arm.name if cell.arm else None, "variables": dict(cell.variables)}
    record["machine"] = describe_machine()
    write(folder / f"{cell.name}.json", record)
    return record


def write(path: Path, value: Any) -> None:
    """Write JSON whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_output(path, json.dumps(value, indent=1) + "\n")
