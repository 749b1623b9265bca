"""The tiny demo: from the command to the first answer, and from a simulated user's feedback to the update that is live.

`python -m benchmarks.tiny_demo --device cuda --json FILE [--quick]`. It starts `openclaw-combine/run_tiny_cpu.sh` on
that device, as a user would, and reads its report and the timeline of its start. On a GPU, the first start of all compiles
kernels (`slime.utils.kernel_caches`); a second one finds them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import record_figure
from benchmarks.learning import UNGATED
from benchmarks.machine import REPOSITORY, describe_machine
from groundwork.command_line import output_file
from groundwork.network import find_available_port
from groundwork.start_timeline import DRIVER, GATEWAY, Event, Step, read, seconds_of

SCRIPT = REPOSITORY / "openclaw-combine" / "run_tiny_cpu.sh"
FIGURES = {
    "feedback_to_live_seconds_median": ("feedback to live, median", "s"),
    "seconds_total": ("whole demo", "s"),
    "tokens_per_second": ("tokens of the student's replies", "tokens/s"),
}


STARTS = {
    "first answer": (GATEWAY, Step.ANSWERED),
    "first step possible": (DRIVER, Step.READY_TO_STEP),
}


def seconds_of_start(events: Sequence[Event]) -> dict[str, float]:
    """Return the seconds from the command to each of `STARTS`; one that the timeline lacks is left out."""
    found = {what: seconds_of(events, process, step) for what, (process, step) in STARTS.items()}
    return {what: seconds for what, seconds in found.items() if seconds is not None}


def command(device: str, folder: Path, *, quick: bool) -> list[str]:
    """Return what starts the demo with its files in ``folder``."""
    updates, heldout = ("2", "8") if quick else ("8", "32")
    words = ["--updates", updates, "--heldout", heldout, "--port", str(find_available_port())]
    words += ["--run-dir", str(folder / "run"), "--report", str(folder / "report.json")]
    return ["bash", str(SCRIPT), *words, "--device", device]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiny_demo", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="two updates: checks that it runs")
    parser.add_argument("--json", required=True, type=output_file, help="file for the demo's report")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tiny-demo-") as name:
        environment = UNGATED | os.environ
        found = subprocess.run(
            command(options.device, Path(name), quick=options.quick), cwd=REPOSITORY, env=environment, check=False
        )
        if found.returncode:
            return found.returncode
        report: dict[str, Any] = json.loads((Path(name) / "report.json").read_text())
        events = read(Path(name) / "run")
    for field, (what, unit) in FIGURES.items():
        if report.get(field) is not None:
            record_figure(f"tiny demo/{what}", report[field], unit)
    for what, seconds in seconds_of_start(events).items():
        record_figure(f"tiny demo/start/{what}", seconds, "s")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(
        json.dumps({"machine": describe_machine(), "report": report, "start": events}, indent=1) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
