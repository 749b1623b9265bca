"""Runs one step as a process of its own and reads its figures as they come.

Guarantees: the step and everything that it started in its process group has ended when :func:`run` returns, whatever happened;
it had ``Step.seconds``; a failure has the end of its output, and a log has all of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.figures import figure_of
from benchmarks.gpu_parts.steps import Step
from benchmarks.machine import REPOSITORY

LAST_LINES = 30
END_SECONDS = 20.0
NO_TESTS = 5
"""Pytest's exit status when a whole file is skipped."""


def run(
    step: Step, seconds: float, heard: Callable[[dict[str, Any]], None], log: Path, *, quick: bool = False
) -> dict[str, Any]:
    """Run ``step`` for at most ``seconds``; call ``heard`` with each figure. ``quick``: see :meth:`Step.command`.

    All that it says goes to the file ``log``, line by line.

    Returns:
        ``status`` (``ok``, ``failed``, ``timed out`` or ``skipped``), ``seconds``, ``figures``; with ``reason`` unless it is ok.
    """
    figures: list[dict[str, Any]] = []
    last: deque[str] = deque(maxlen=LAST_LINES)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="measure-") as name, log.open("w", buffering=1) as kept:
        report = Path(name) / "report.xml"
        process = subprocess.Popen(
            [sys.executable, *step.command(Path(name), report, quick=quick)],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=_environment(),
            start_new_session=True,
        )
        late = threading.Event()
        timer = threading.Timer(seconds, _too_late, [process, late])
        timer.daemon = True
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                kept.write(line)
                figure = figure_of(line.strip())
                if figure is None:
                    last.append(line.rstrip()[:400])
                    continue
                figures.append(figure)
                heard(figure)
            status = process.wait()
        finally:
            timer.cancel()
            _end(process)
        found: dict[str, Any] = {"status": "ok", "seconds": round(time.monotonic() - start, 1), "figures": figures}
        if late.is_set():
            return found | {
                "status": "timed out",
                "reason": f"it did not end within {seconds:.0f} s",
                "output": [*last],
            }
        skips = _only_skips(report) if status in (0, NO_TESTS) else None
        if skips:
            return found | {"status": "skipped", "reason": skips}
        if status:
            return found | {"status": "failed", "reason": f"exit status {status}", "output": [*last]}
        return found


def _environment() -> dict[str, str]:
    paths = [str(REPOSITORY), str(REPOSITORY / "slime"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}


def _too_late(process: subprocess.Popen[str], late: threading.Event) -> None:
    late.set()
    _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End the process group of ``process``, first politely; what is left of it also when its leader is gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)


def _only_skips(report: Path) -> str | None:
    """Return why every test of pytest's ``report`` was skipped; None when one ran, or there is no report."""
    if not report.exists():
        return None
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    skips = [case.find("skipped") for case in cases]
    if not cases or any(skip is None for skip in skips):
        return None
    return "; ".join(dict.fromkeys(skip.get("message", "") for skip in skips if skip is not None))
