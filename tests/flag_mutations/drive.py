"""Runs workers until every job has an answer, whatever happens to a worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.contract.flag_effects import INTEGRATION
from tests.flag_mutations.jobs import ROOT
from tests.flag_mutations.worker import FOUND, JOBS, Job, as_json

STARTUP = Path(__file__).with_name("startup")
FAST, WITH_ENGINES = 120, 1500
"""Seconds after which a test has failed; an ignored flag may leave it waiting."""

Line = dict[str, Any]


def longest(jobs: list[Job]) -> int:
    """Return the seconds that a test of ``jobs`` may take."""
    return WITH_ENGINES if any(node.startswith(INTEGRATION) for job in jobs for node in job.nodes) else FAST


def answers(jobs: list[Job]) -> Iterator[Line]:
    """Yield one line per job; a job in which the worker ended is ``unsure``, and the others go on in a new worker."""
    waiting = {job.flag: job for job in jobs}
    while waiting:
        last: Line | None = None
        for last in _lines_of_worker(list(waiting.values())):
            if last["step"] not in ("start", "check"):
                del waiting[last["flag"]]
                yield last
        if not waiting:
            return
        if last is None:
            raise SystemExit("flag_mutations: the worker ran no test; its output is above")
        if last["flag"] in waiting:
            del waiting[last["flag"]]
            yield last | {"step": "unsure", "why": "the test's process ended or hung"}


def _lines_of_worker(jobs: list[Job]) -> Iterator[Line]:
    with tempfile.TemporaryDirectory(prefix="flag-mutations-") as folder:
        found, output = Path(folder, "found"), Path(folder, "output")
        Path(folder, "jobs").write_text(as_json(jobs))
        found.touch()
        with output.open("w") as stream:
            worker = subprocess.Popen(
                _command(jobs),
                cwd=ROOT,
                env=_environment(Path(folder, "jobs"), found),
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        count = 0
        try:
            for line in _follow(worker, found, silence=2 * longest(jobs)):
                count += 1
                yield line
        finally:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        if count == 0:
            print(output.read_text()[-4000:], file=sys.stderr)


def _command(jobs: list[Job]) -> list[str]:
    nodes = dict.fromkeys(node for job in jobs for node in job.nodes)
    options = ["-q", "-p", "tests.flag_mutations.worker", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return [sys.executable, "-m", "pytest", *options, f"--timeout={longest(jobs)}", *nodes]


def _environment(jobs: Path, found: Path) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(STARTUP), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, JOBS: str(jobs), FOUND: str(found)}


def _follow(worker: subprocess.Popen[bytes], found: Path, *, silence: float) -> Iterator[Line]:
    """Yield lines as they are written, until the worker has ended or says nothing for too long."""
    spoke = time.monotonic()
    with found.open() as file:
        while True:
            ended = worker.poll() is not None
            while text := file.readline():
                spoke = time.monotonic()
                yield json.loads(text)
            if ended or time.monotonic() - spoke > silence:
                return
            time.sleep(0.1)
