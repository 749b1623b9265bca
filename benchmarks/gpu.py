"""Every figure that one GPU can give, in about ten minutes: the benchmarks on CUDA and the tests of `tests/gpu`.

`python -m benchmarks.gpu --json FILE [--only NAME ...] [--minutes 10] [--list]`. Each step is a process of its own with a time limit
and runs whatever became of the others. Each figure is a line as it comes; FILE has all of them with the machine and is written anew
after every step, so an interrupted run keeps what it had; the folder beside it, with the ending `.logs`, has the log of each step. A step that the machine cannot run (no SGLang, one GPU only) is skipped
with the reason; one that does not fit into --minutes any more too. The exit status is 1 when a step failed or ran out of time, 2 when
there is no GPU. `--device cpu --quick` runs the benchmarks' small forms on a CPU, to see that they run; steps have no limit of their own there.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import described
from benchmarks.gpu_parts import machine
from benchmarks.gpu_parts.run_step import run
from benchmarks.gpu_parts.steps import STEPS, Step, refusal
from groundwork.command_line import new_output_file
from groundwork.private_files import write_output

NO_GPU = 2
MINUTES, QUICK_MINUTES = 10.0, 60.0
"""What all steps may take: a GPU is rented, but a check on a busy CPU has to reach the last step."""
MIN_SECONDS = 20.0
"""A step with less time than this is not begun."""


def result_of(step: Step, options: argparse.Namespace, found: dict[str, Any], left: float) -> dict[str, Any]:
    """Run ``step`` if the machine and the ``left`` seconds allow it; return what became of it."""
    if options.device == "cpu" and step.is_test:
        reason: str | None = "its tests need a GPU"
    else:
        reason = refusal(step, gpus=len(found["gpus"]) or step.gpus, missing=found["missing"])
    late = reason is None and left < MIN_SECONDS
    if late:
        reason = f"{max(0.0, left):.0f} of --minutes {options.minutes:g} are left, in seconds"
    if reason is not None:
        return {"status": "skipped", "reason": reason, "seconds": 0.0, "figures": []} | ({"late": True} if late else {})
    seconds = left if options.quick else min(step.seconds, left)
    log = logs_of(options.json) / f"{re.sub(r'[^A-Za-z0-9.]+', '_', step.name)}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    return run(step, seconds, _print_figure, log, quick=options.quick) | {"log": str(log)}


def logs_of(file: Path) -> Path:
    """Return the folder beside the figures' ``file`` that has a log of each step."""
    return file.with_suffix(".logs")


def _print_figure(figure: dict[str, Any]) -> None:
    print(f"  {described(figure)}", flush=True)


def write(file: Path, document: dict[str, Any]) -> None:
    """Write ``document`` so that a reader finds the old file or the new one, whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_output(file, json.dumps(document, indent=1) + "\n")


def measure(options: argparse.Namespace, found: dict[str, Any]) -> int:
    """Run the chosen steps in their order; return the exit status."""
    deadline = time.monotonic() + 60.0 * options.minutes
    results: dict[str, Any] = {}
    document = {"machine": machine.describe(found), "device": options.device, "quick": options.quick, "steps": results}
    chosen = [step for step in STEPS if not options.only or step.name in options.only]
    for step in chosen:
        print(f"{step.name} ...", flush=True)
        results[step.name] = result = result_of(step, options, found, deadline - time.monotonic())
        write(options.json, document)
        for line in result.get("output", []):
            print(f"  | {line}")
        print(f"{step.name}: {result['status']}, {result['seconds']:.1f} s"
              + (f": {result['reason']}" if "reason" in result else ""), flush=True)  # fmt: skip
    counts = [result["status"] for result in results.values()]
    bad = [name for name, result in results.items() if result["status"] in ("failed", "timed out")]
    figures = sum(len(result["figures"]) for result in results.values())
    late = [name for name, result in results.items() if result.get("late")]
    if late:
        names = " ".join(f'"{name}"' for name in late)
        print(f"no time was left for {len(late)} steps; type: python -m benchmarks.gpu --json FILE --only {names}")
    print(f"{figures} figures of {counts.count('ok')} steps in {options.json}; {counts.count('skipped')} skipped"
          + (f"; failed: {', '.join(bad)}" if bad else ""))  # fmt: skip
    return int(bool(bad))


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    names = [step.name for step in STEPS]
    parser.add_argument("--json", type=new_output_file, metavar="FILE", help="file for the figures")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="these steps only (--list names them)")
    parser.add_argument(
        "--minutes", type=float, help=f"for all steps together (default: {MINUTES:g}, with --quick {QUICK_MINUTES:g})"
    )
    parser.add_argument("--list", action="store_true", help="name the steps and end")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="default: %(default)s")
    parser.add_argument(
        "--quick", action="store_true", help="with --device cpu: small benchmarks, to see that they run"
    )
    options = parser.parse_args()
    if options.list:
        print("\n".join(names))
        return 0
    if options.json is None:
        parser.error("--json FILE is needed: where do the figures go?")
    if options.quick != (options.device == "cpu"):
        parser.error("--device cpu and --quick go together: a GPU is measured at full size, a CPU is not measured here")
    if options.minutes is None:
        options.minutes = QUICK_MINUTES if options.quick else MINUTES
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # as Ctrl-C: ends the step that runs
    try:
        found = machine.probe(sorted({name for step in STEPS for name in step.needs}))
    except RuntimeError as error:
        print(f"{error}\ntype: source .venv/bin/activate", file=sys.stderr)
        return NO_GPU
    if options.device == "cuda" and not found["gpus"]:
        driver = machine.driver_version()
        print(
            f"torch {found['torch']} sees no CUDA device (driver: {driver or 'nvidia-smi gives none'}). scripts/setup.sh doctor "
            "says what is missing; --device cpu --quick checks the benchmarks without a GPU.",
            file=sys.stderr,
        )
        return NO_GPU
    return measure(options, found)


if __name__ == "__main__":
    sys.exit(main())
