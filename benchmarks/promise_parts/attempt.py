"""Types a row's lines in a clone, and grades what the user sees.

Guarantees: the user's variables do not reach the lines, and no process of a row outlives it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchmarks.promise_parts.clone import make_clone
from benchmarks.promise_parts.rows import Row
from groundwork.network import find_available_port
from groundwork.process import group_alive, signal_group
from lab.testkit.served_gateway import Gateway, running_gateway

QUICK_SECONDS, SLOW_SECONDS = 120.0, 1500.0
STOP_SECONDS = 20.0
KEPT = ("PATH", "HOME", "TMPDIR", "LANG", "NO_PROXY", "no_proxy", "HTTPS_PROXY", "https_proxy", "SSL_CERT_FILE")
KEPT_PREFIXES = ("PIP_", "UV_", "npm_config_")
"""What a machine needs to reach its packages."""
GATEWAY = "http://127.0.0.1:8000"
"""What rows write for the address of the gateway."""
PORT_VARIABLE = "FREE_PORT"
"""A port for a row that starts a server itself."""
LAST_LINES = 12
LINE_CHARACTERS = 300
"""The most of a line that is recorded; pip names 280 packages in one."""


class Grade(StrEnum):
    """What became of a promise."""

    WORKS = "W"
    DIFFERS = "D"
    MISSING = "M"
    LEFT_OUT = "-"


@dataclass(frozen=True)
class Outcome:
    """A row's grade: the reason of a D, the line that the user sees, and the last lines of its output."""

    id: str
    grade: Grade
    reason: str
    line: str
    seconds: float
    output: str


def graded(row: Row, status: int, output: str) -> tuple[Grade, str]:
    """Return the grade of an output, and the line that the user sees."""
    if row.works and status == 0 and all(re.search(each, output, re.MULTILINE) for each in row.works):
        return Grade.WORKS, line_with(row.works[0], output)
    if row.line and re.search(row.line, output, re.MULTILINE):
        return Grade.DIFFERS, line_with(row.line, output)
    return Grade.MISSING, (output.strip().splitlines() or [""])[-1].strip()


def line_with(pattern: str, output: str) -> str:
    """Return the line in which a match begins, at most `LINE_CHARACTERS` of it."""
    found = re.search(pattern, output, re.MULTILINE)
    if found is None:
        return ""
    first = found.start() + len(found[0]) - len(found[0].lstrip())
    return output[output.rfind("\n", 0, first) + 1 :].partition("\n")[0].strip()[:LINE_CHARACTERS]


class Typist:
    """Owns a clone and, if a row asks one, a gateway; ``close`` ends both."""

    def __init__(self, folder: Path, *, gateway: bool) -> None:
        """Copy the repository into ``folder``."""
        self._exits = ExitStack()
        self._clone = make_clone(folder / "OpenClaw-RL")
        self._gateway: Gateway | None = None
        if gateway:
            (folder / "gateway").mkdir()
            self._gateway = self._exits.enter_context(running_gateway(folder / "gateway"))

    def close(self) -> None:
        """Stop the gateway."""
        self._exits.close()

    def attempt(self, row: Row) -> Outcome:
        """Type a row's lines, or read its pages, and grade the output."""
        if row.needs and shutil.which(row.needs) is None:
            return Outcome(row.id, Grade.LEFT_OUT, f"needs {row.needs}, which this machine lacks", "", 0.0, "")
        start = time.monotonic()
        for name, text in row.files.items():
            (self._clone / name).parent.mkdir(parents=True, exist_ok=True)
            (self._clone / name).write_text(self._addressed(text))
        if row.read:
            pages = [self._clone / name for name in row.read]
            status, output = 0, "\n".join(page.read_text() for page in pages if page.is_file())
        else:
            status, output = self._bash(self._addressed(row.type), SLOW_SECONDS if row.slow else QUICK_SECONDS)
        output = output.replace(str(self._clone), "CLONE").replace(str(Path(self._clone).resolve()), "CLONE")
        grade, line = graded(row, status, output)
        ending = "" if row.read else "\n".join([*output.splitlines()[-LAST_LINES:], f"exit status {status}"])
        reason = row.differs if grade is Grade.DIFFERS else ""
        return Outcome(row.id, grade, reason, line, time.monotonic() - start, ending)

    def _addressed(self, text: str) -> str:
        return text if self._gateway is None else text.replace(GATEWAY, self._gateway.url)

    def _bash(self, lines: str, seconds: float) -> tuple[int, str]:
        """Return exit status and output of lines of bash; those that take longer are stopped, with status 124."""
        with tempfile.TemporaryFile() as output:
            child = subprocess.Popen(
                ["bash", "-o", "pipefail", "-c", lines],
                cwd=self._clone,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = child.wait(seconds)
            except subprocess.TimeoutExpired:
                status = 124
            finally:
                _end_group(child)
            output.seek(0)
            return status, output.read().decode(errors="replace")

    def _environment(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if name in KEPT or name.startswith(KEPT_PREFIXES)}
        programs = self._clone / ".venv" / "bin"
        return {
            **kept,
            "PATH": f"{programs}:{kept.get('PATH', os.defpath)}",
            "VIRTUAL_ENV": str(programs.parent),
            PORT_VARIABLE: str(find_available_port()),
            # Nothing of a row asks the hub for a model, and one core each is enough for tiny ones.
            **dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "OMP_NUM_THREADS"), "1"),
            "COLUMNS": "200",
        }


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """End what is left of a row's processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        signal_group(child.pid, number)
        deadline = time.monotonic() + STOP_SECONDS
        while group_alive(child.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
    child.wait()
