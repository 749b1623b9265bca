"""Does the whole loop learn? Runs the CPU demo once per method and seed and records every report.

`python -m benchmarks.learning [--quick] --json FILE [--methods combine,opd,rl] [--seeds 0,1,2] [--client plain]`. A run
is the real thing: SGLang, Ray, FSDP2, gateway, judge, ledger, simulated user. With `--client plain` the user is a plain
OpenAI client, with one taste per seed. A finished run in FILE is kept, so an interrupted benchmark continues where it
stopped. Exit status 1 when a run fails; rates are recorded, not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import REPOSITORY, describe_machine
from groundwork.command_line import output_file

SCRIPT = "run_tiny_cpu.sh"
UPDATES = 24
STUDENT, PLAIN = "student", "plain"
UNGATED = {"GATE": "0"}
"""Unless the environment says otherwise: the gate keeps turns out of training, and its own benchmarks measure it."""
LEFT_OUT = ("run_dir",)  # means nothing on another machine
SUMMARY_FIELDS = (
    "rule_rate_before",
    "rule_rate_after",
    "right_number_rate_before",
    "right_number_rate_after",
    "degenerate_rate_after",
    "feedback_to_live_seconds_median",
    "tokens_per_second",
    "seconds_total",
)


def methods_with_a_demo(repository: Path = REPOSITORY) -> list[str]:
    """Return the names of the method folders that have a demo: those with `run_tiny_cpu.sh`."""
    return sorted(path.parent.name.removeprefix("openclaw-") for path in repository.glob(f"openclaw-*/{SCRIPT}"))


def run_demo(method: str, seed: int, updates: int, extra: list[str]) -> dict:
    """Run the demo of one method with one seed in its own process and return its report.

    Raises:
        subprocess.CalledProcessError: when the demo fails; its output is on this process's standard output.
    """
    with tempfile.TemporaryDirectory(prefix="learning-") as folder:
        report = Path(folder) / "report.json"
        script = REPOSITORY / f"openclaw-{method}" / SCRIPT
        command = ["bash", str(script), "--updates", str(updates), "--seed", str(seed), "--report", str(report), *extra]
        subprocess.run(command, cwd=REPOSITORY, env=UNGATED | os.environ, check=True)
        result = json.loads(report.read_text())
    return {name: value for name, value in result.items() if name not in LEFT_OUT}


def summarise(runs: list[dict]) -> dict:
    """Return, per method and client, the mean, median, minimum and maximum over seeds of the fields people compare."""
    summary: dict = {}
    for title in sorted(set(map(_title, runs))):
        reports = [run for run in runs if _title(run) == title]
        summary[title] = {
            "seeds": [run["seed"] for run in reports],
            "tastes": [run["taste"] for run in reports],
            "updates": reports[0]["updates"],
        }
        for field in SUMMARY_FIELDS:
            values = [run[field] for run in reports if run.get(field) is not None]
            if values:
                summary[title][field] = {
                    "mean": round(statistics.mean(values), 4),
                    "median": round(statistics.median(values), 4),
                    "min": round(min(values), 4),
                    "max": round(max(values), 4),
                }
        summary[title]["refused_requests"] = sum(run["refused_requests"] for run in reports)
    return summary


def _title(run: dict) -> str:
    return run["method"] if run["client"] == STUDENT else f"{run['method']}, {run['client']} client"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    methods_found = ",".join(methods_with_a_demo())
    parser.add_argument("--methods", default=methods_found, help="comma-separated (default: %(default)s)")
    parser.add_argument("--seeds", default="0,1,2", help="comma-separated (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=UPDATES, help="optimizer steps per run (default: %(default)s)")
    parser.add_argument(
        "--client",
        choices=(STUDENT, PLAIN),
        default=STUDENT,
        help="who talks: the student, or a plain OpenAI client with one taste per seed (default: %(default)s)",
    )
    parser.add_argument("--gsm8k", default=None, help="GSM8K JSON file; adds its rule rates")
    parser.add_argument("--quick", action="store_true", help="one method, one seed, two updates: checks that it runs")
    parser.add_argument("--json", required=True, type=output_file, help="file for the figures")
    arguments = parser.parse_args()

    methods, seeds, updates = arguments.methods.split(","), arguments.seeds.split(","), arguments.updates
    if arguments.quick:
        methods, seeds, updates = methods[:1], seeds[:1], 2
    runs: list[dict] = json.loads(arguments.json.read_text())["runs"] if arguments.json.exists() else []
    extra = ["--client", arguments.client, *(["--gsm8k", arguments.gsm8k] if arguments.gsm8k else [])]
    for seed in map(int, seeds):
        for method in methods:
            wanted = (method, seed, updates, arguments.client)
            if any((run["method"], run["seed"], run["updates"], run["client"]) == wanted for run in runs):
                print(f"{method} seed {seed}: already in {arguments.json}", flush=True)
                continue
            started = time.perf_counter()
            report = run_demo(method, seed, updates, extra)
            print(f"{method} seed {seed}: {time.perf_counter() - started:.0f} s", flush=True)
            runs.append(report)
            document = {"machine": describe_machine(), "summary": summarise(runs), "runs": runs}
            arguments.json.parent.mkdir(parents=True, exist_ok=True)
            arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    json.dump(summarise(runs), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
