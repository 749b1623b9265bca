"""Does a better teacher teach? Distils every turn of the CPU demo from teachers of another model, and records each report.

`python -m benchmarks.teachers [--quick] --json FILE [--arms liked/same,random/same] [--seeds 0]`. A teacher is a tiny model that
answers as the student likes, with the policy's tokenizer or one of its own, or a control: random weights, or `unchanged`, the
checkpoint that the policy starts from (`lab.tiny_models.teachers`). A SGLang server of its own serves it. The run is the real one,
`lab/every_turn` its method: no judge is asked and no hint is read, so all that is learned comes from the teacher. Gate and fuses are
off, because they would end a control early. A finished run in FILE is kept. Exit status 1 when a run fails; rates are recorded, not
judged.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.learning import LEFT_OUT, UNGATED
from benchmarks.machine import REPOSITORY, describe_machine
from groundwork.command_line import output_file
from groundwork.network import find_available_port
from lab.testkit.live_engine import engine_arguments, live_engine
from openclaw.ledger.store import Ledger
from openclaw.runtime.where import CHECKPOINTS_NAME, LEDGER_NAME

SCRIPT = REPOSITORY / "openclaw-opd" / "run_tiny_cpu.sh"
METHOD = REPOSITORY / "lab" / "every_turn"
UNCHANGED = "unchanged/same"
ARMS = ("liked/same", "liked/other", "random/same", UNCHANGED)
UPDATES = 16
SUMMARY = ("rule_rate_before", "rule_rate_after", "right_number_rate_before", "right_number_rate_after")


def teacher_of(arm: str, folder: Path) -> Path:
    """Return the checkpoint of an arm, built into ``folder`` if it is missing there.

    Raises:
        subprocess.CalledProcessError: the build fails, and has said why.
    """
    kind, cut = arm.split("/")
    path = folder / f"{kind}_{cut}"
    if path.exists():
        return path
    words = ["lab.tiny_models.teachers", kind, "--tokenizer", cut, "--out", str(path)]
    if arm == UNCHANGED:
        words = ["lab.tiny_models.build"]
    paths = os.pathsep.join([str(REPOSITORY / "openclaw-test"), os.environ.get("PYTHONPATH", "")])
    built = [sys.executable, "-m", *words]
    found = subprocess.run(
        built, cwd=REPOSITORY, env=os.environ | {"PYTHONPATH": paths}, check=True, stdout=subprocess.PIPE, text=True
    )
    return Path(found.stdout.split()[-1])


def command(folder: Path, seed: int, updates: int, heldout: int) -> list[str]:
    """Return what starts the demo with its files in ``folder``."""
    words = ["--method", str(METHOD), "--updates", str(updates), "--seed", str(seed), "--heldout", str(heldout)]
    words += ["--port", str(find_available_port()), "--device", "cpu"]
    return ["bash", str(SCRIPT), *words, "--run-dir", str(folder / "run"), "--report", str(folder / "report.json")]


def environment(url: str, teacher: Path) -> dict[str, str]:
    """Return the run's variables; those of the caller win, but for the teacher's."""
    named = {"OPENCLAW_TEACHER_URL": url, "OPENCLAW_TEACHER_TOKENIZER": str(teacher)}
    return UNGATED | {"OPENCLAW_FUSES": "off"} | os.environ | named


def tokens_of(ledger: Path) -> dict[str, int]:
    """Return how many tokens of the scored replies were taught, and how many were not, by reason."""
    found: Counter[str] = Counter(taught=0)
    with closing(Ledger(ledger)) as opened:
        for record in opened.views.turn_records():
            verdict = record.verdict
            if verdict is not None and verdict.teacher_log_probs is not None:
                found.update(verdict.teacher_untaught)
                found["taught"] += len(verdict.teacher_log_probs) - sum(verdict.teacher_untaught.values())
    return dict(found)


def run_arm(arm: str, teacher: Path, seed: int, updates: int, heldout: int) -> dict[str, Any]:
    """Run the demo with one teacher and return its report.

    Raises:
        subprocess.CalledProcessError: the demo fails; its output is on this process's standard output.
    """
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="teachers-") as name:
        folder = Path(name)
        with live_engine(engine_arguments(teacher, folder / "teacher")) as engine:
            words = command(folder, seed, updates, heldout)
            subprocess.run(words, cwd=REPOSITORY, env=environment(engine.url(), teacher), check=True)
        report = json.loads((folder / "report.json").read_text())
        tokens = tokens_of(folder / "run" / CHECKPOINTS_NAME / LEDGER_NAME)
    kept = {name: value for name, value in report.items() if name not in LEFT_OUT}
    return {"arm": arm, **kept, "teacher_tokens": tokens, "seconds_with_teacher": round(time.perf_counter() - started)}


def summarise(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return, per arm, the rates of each seed, the tokens and the seconds."""
    summary: dict[str, dict[str, Any]] = {}
    for run in runs:
        row = summary.setdefault(run["arm"], {"updates": run["updates"], "seeds": []})
        row["seeds"].append(run["seed"])
        for name in (*SUMMARY, "teacher_tokens", "refused_requests", "seconds_total"):
            row.setdefault(name, []).append(run[name])
    return summary


def arms(text: str) -> list[str]:
    """Parse names of arms.

    Raises:
        argparse.ArgumentTypeError: there is no such arm.
    """
    if unknown := [name for name in text.split(",") if name not in ARMS]:
        raise argparse.ArgumentTypeError(f"no arm {unknown[0]!r}; use {', '.join(ARMS)}")
    return text.split(",")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.teachers", description=__doc__)
    parser.add_argument("--arms", type=arms, default=[*ARMS], help=f"of {', '.join(ARMS)} (default: all)")
    parser.add_argument("--seeds", default="0", help="comma-separated (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=UPDATES, help="optimizer steps per run (default: %(default)s)")
    parser.add_argument("--heldout", type=int, default=128, help="held-out problems (default: %(default)s)")
    parser.add_argument(
        "--teachers", type=Path, default=None, help="folder that keeps the teachers (default: they are built anew)"
    )
    parser.add_argument("--quick", action="store_true", help="the first arm and seed, two updates: checks that it runs")
    parser.add_argument("--json", required=True, type=output_file, help="file for the figures")
    options = parser.parse_args()
    names, seeds, updates = options.arms, [*map(int, options.seeds.split(","))], options.updates
    if options.quick:
        names, seeds, updates = names[:1], seeds[:1], 2
    runs: list[dict[str, Any]] = json.loads(options.json.read_text())["runs"] if options.json.exists() else []
    with tempfile.TemporaryDirectory(prefix="teachers-built-") as name:
        folder = (options.teachers or Path(name)).absolute()
        for arm in names:
            teacher = teacher_of(arm, folder)
            for seed in seeds:
                if any((run["arm"], run["seed"], run["updates"]) == (arm, seed, updates) for run in runs):
                    print(f"{arm} seed {seed}: already in {options.json}", flush=True)
                    continue
                run = run_arm(arm, teacher, seed, updates, options.heldout)
                if arm != UNCHANGED:
                    run["teacher"] = json.loads((teacher / "metrics.json").read_text())
                print(f"{arm} seed {seed}: {run['seconds_with_teacher']} s", flush=True)
                runs.append(run)
                document = {"machine": describe_machine(), "summary": summarise(runs), "runs": runs}
                options.json.write_text(json.dumps(document, indent=1) + "\n")
    json.dump(summarise(runs), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
