"""Command line of the machine check, for scripts/setup.sh: ``check``, ``verify`` and ``doctor``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

from machine_check.checks import MIN_DRIVER, base_problems, driver_problems, space_problems, toolkit_problems
from machine_check.doctor import report
from machine_check.facts import read_driver, read_machine

ROOT = Path(__file__).resolve().parent.parent.parent
MODULES = ("torch", "sglang", "sglang_router", "ray", "transformers", "peft", "megatron.core", "fastapi")


def failures(with_gpu: bool) -> list[str]:
    """Return what is wrong, one line each; ``with_gpu`` asks torch for its devices too."""
    results: list[str] = []
    for name in MODULES:
        try:
            importlib.import_module(name)
        except (ImportError, OSError, RuntimeError) as error:
            results.append(f"cannot import {name}: {error}; delete .venv and run scripts/setup.sh gpu again")
    if results:
        return results
    import torch

    if torch.version.cuda is None:
        return [f"torch {torch.__version__} is not a CUDA build; delete .venv and run scripts/setup.sh gpu again"]
    if with_gpu and not torch.cuda.is_available():
        driver = read_driver()
        seen = driver.failure or f"driver {driver.version}"
        return [
            f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no usable GPU with {seen}; "
            f"it needs driver {MIN_DRIVER} or newer and a GPU in CUDA_VISIBLE_DEVICES"
        ]
    return []


def summary() -> str:
    """Return one line about torch and the GPUs it sees."""
    import torch

    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}, {len(names)} GPUs {sorted(set(names))}"


def main() -> int:
    """Run one command; exit status 1 says that something is missing."""
    parser = argparse.ArgumentParser(prog="machine_check")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="list what keeps the CUDA environment from being installed")
    check.add_argument("--python", default="", help="interpreter for the environment")
    check.add_argument("--fresh", action="store_true", help="nothing is installed yet; look at the disk too")
    verify = commands.add_parser("verify", help="check a finished CUDA environment")
    verify.add_argument("--without-gpu", action="store_true", help="do not ask torch for a device")
    doctor = commands.add_parser("doctor", help="say what this machine can run")
    doctor.add_argument("--python", default="", help="interpreter for the environment")
    doctor.add_argument("--environment", default="none", help="what .venv is")
    arguments = parser.parse_args()

    if arguments.command == "verify":
        from machine_check.__main__ import failures, summary

        lines = failures(with_gpu=not arguments.without_gpu)
        if not lines:
            print(f"setup: {summary()}")
        return _told(lines)
    machine = read_machine(arguments.python, os.environ)
    if arguments.command == "doctor":
        text, something_runs = report(machine, ROOT, arguments.environment, os.environ)
        print(text)
        return 0 if something_runs else 1
    problems = base_problems(machine) + driver_problems(machine.driver, os.environ.get("CUDA_VISIBLE_DEVICES"))
    problems += toolkit_problems(machine.toolkit, machine.interpreter)
    if arguments.fresh:
        problems += space_problems(ROOT / ".venv", os.environ)
    return _told([str(problem) for problem in problems])


def _told(lines: list[str]) -> int:
    for line in lines:
        print(f"setup: {line}", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
