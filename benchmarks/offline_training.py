"""Does training from a run's log reach the score of the run? Trains offline from a demo's run, and measures both.

`python -m benchmarks.offline_training --run runs/DEMO --json FILE [--forms ledger,text,judged]`. The run is one of
`run_tiny_cpu.sh`, whose report has its own score. ``ledger`` trains from its ledger: exact ids, its verdicts, its batches.
``text`` trains from its export: texts rendered and scored, verdicts kept. ``judged`` asks the judge again. Each starts from the
demo's first weights and is measured on the same held-out problems. Intervals are Wilson's, at 95 %. A form that FILE has is
kept, so an interrupted benchmark continues.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.machine import REPOSITORY, describe_machine
from groundwork.command_line import output_file
from groundwork.network import find_available_port
from groundwork.process import ChildProcess, spawn
from openclaw.ledger.store import Ledger
from openclaw.runtime.where import find_ledger

sys.path.append(str(REPOSITORY / "openclaw-test"))
from asking import server_client
from intervals import wilson
from measure import heldout_items, measure

from lab.tiny_models.build import ensure_built

FORMS = ("ledger", "text", "judged")
DONE = "serving until"
TIMEOUT_SECONDS = 1800.0
MODEL = "tiny"


def score(rate: float, count: int) -> dict[str, Any]:
    """Return a rate with its interval."""
    low, high = wilson(round(rate * count), count)
    return {"rate": rate, "interval": (round(low, 4), round(high, 4)), "problems": count}


def data_of(form: str, run: Path, folder: Path) -> Path:
    """Return the logs of a form: the run itself, or its export."""
    if form == "ledger":
        return run
    file = folder / "conversations.jsonl"
    subprocess.run(
        [sys.executable, "-m", "openclaw.inspect", str(run), "export", str(file)], check=True, cwd=REPOSITORY
    )
    return file


def train(form: str, run: Path, folder: Path, problems: int) -> dict[str, Any]:
    """Train offline from one form of the log and return the figures."""
    report = json.loads((run / "report.json").read_text())
    model, port = ensure_built(report["seed"]), find_available_port()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "slime")]),
        **{name: str(model) for name in ("HF_CKPT", "PRM_MODEL_PATH")},
        **{"SERVED_MODEL_NAME": MODEL, "SEED": str(report["seed"]), "PORT": str(port), "RUN_DIR": str(folder / "run")},
        "DATA_PATH": str(data_of(form, run, folder)),
    }
    words = ["--profile", "tiny_cpu", "--method", report["method"], "--serve-when-done"]
    words += ["--judge-again"] if form == "judged" else []
    log, started = folder / "driver.log", time.monotonic()
    child = spawn([sys.executable, "-m", "openclaw.launch", *words], env=environment, log_path=log, name="run")
    try:
        wait_for(child, log)
        seconds = time.monotonic() - started
        result = asyncio.run(ask(port, problems))
    finally:
        if child.alive():
            os.kill(child.pid, signal.SIGTERM)
            child.wait(120.0)
        child.kill()
    found = find_ledger(folder / "run")
    assert found is not None
    with closing(Ledger(found)) as ledger:
        counts = ledger.views.counts()
    return {
        "form": form,
        "after": score(result.rule_rate, problems),
        "right_number_rate": result.right_number_rate,
        "degenerate_rate": result.degenerate_rate,
        "steps": counts["steps"],
        "scored_turns": counts["scored"],
        "samples": counts["samples"],
        "not_trained": counts["turn_reasons"],
        "seconds": round(seconds, 1),
    }


async def ask(port: int, problems: int) -> Any:
    """Measure the served policy on held-out problems."""
    async with server_client(f"http://127.0.0.1:{port}/v1", 120) as client:
        return await measure(client, MODEL, heldout_items(problems))


def wait_for(child: ChildProcess, log: Path) -> None:
    """Return when the data is used and the run serves.

    Raises:
        RuntimeError: the run ended, or takes too long; the end of its log says why.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while DONE not in log.read_text():
        if not child.alive() or time.monotonic() > deadline:
            raise RuntimeError(child.log_tail(25))
        time.sleep(0.5)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.offline_training", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of a finished run of the demo")
    parser.add_argument("--forms", default=",".join(FORMS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--json", type=output_file, required=True, help="file for the figures")
    arguments = parser.parse_args()
    report = json.loads((arguments.run / "report.json").read_text())
    problems = report["heldout_problems"]
    live = {
        "conversations": report["sessions"],
        "steps": report["updates"],
        "before": score(report["rule_rate_before"], problems),
        "after": score(report["rule_rate_after"], problems),
    }
    runs: list[dict[str, Any]] = []
    if arguments.json.exists():
        runs = json.loads(arguments.json.read_text())["runs"]
    for form in arguments.forms.split(","):
        if any(each["form"] == form for each in runs):
            continue
        with tempfile.TemporaryDirectory(prefix="offline-") as folder:
            runs.append(train(form, arguments.run.absolute(), Path(folder), problems))
        print(json.dumps(runs[-1]), flush=True)
        document = {"machine": describe_machine(), "method": report["method"], "live": live, "runs": runs}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
