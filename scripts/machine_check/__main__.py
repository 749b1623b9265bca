"""Command line of the machine check, for scripts/setup.sh: ``check``, ``verify`` and ``doctor``.

``doctor`` reports what this machine can run: hardware, environment, launch scripts that fit, what is missing. The kind of a script
follows from its name, as the table of ``instructions/scripts.md`` has it. Memory is that of the card class the script was computed
for; the dry run of a script prints the budget itself.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from machine_check.checks import MIN_DRIVER, Problem, base_problems, driver_problems, space_problems, toolkit_problems
from machine_check.facts import (
    Gpu,
    Machine,
    find_bubblewrap,
    find_chromium,
    free_gb,
    read_driver,
    read_machine,
    visible,
)

CPU_SCRIPT = "run_tiny_cpu.sh"
"""The script that makes a folder a method's."""


@dataclass(frozen=True)
class Kind:
    """Scripts of one kind: pattern of the file name, GPUs, and the MiB that nvidia-smi shows on the smallest card that suits."""

    pattern: str
    gpus: int
    memory_mib: int
    words: str
    capability: tuple[int, int] = (8, 0)


AGENT_FOLDERS = ("toolcall-rl", "terminal-rl", "gui-rl", "swe-rl")
MAIN = (
    "openclaw-combine/run_qwen3_4b_openclaw_combine.sh",
    "openclaw-combine/run_qwen3_4b_openclaw_combine_lora.sh",
    "openclaw-combine/run_qwen3_1_7b_openclaw_combine_24gb.sh",
    "openclaw-combine/run_tiny_cpu.sh",
)
"""The scripts to start with, by size of the machine; they are listed first."""
# The first pattern that matches counts. Cards show a few percent less than their name: 24 GB as 22700 (L4) to 24564 MiB.
OF_AGENTS = (
    Kind("gui-rl/run_tiny_cpu.sh", 0, 0, "no GPU, bubblewrap and Chromium"),
    Kind("*/run_tiny_cpu.sh", 0, 0, "no GPU, bubblewrap"),
    Kind("*/run_*_agent.sh", 8, 78_000, "8 GPUs of 80 GB, or none and a server to ask (--served)"),
    Kind("*nodes*.sh", 8, 78_000, "several machines of 8 GPUs"),
    Kind("*.sh", 8, 78_000, "8 GPUs of 80 GB"),
)
SEVERAL = OF_AGENTS[3]
KINDS = (
    Kind("run_tiny_cpu*.sh", 0, 0, "no GPU"),
    Kind("run_*_16gb.sh", 1, 15_000, "1 GPU of 16 GB, and a judge elsewhere"),
    Kind("run_*_24gb.sh", 1, 22_000, "1 GPU of 24 GB"),
    Kind("run_*_fp8.sh", 8, 38_000, "8 GPUs of 40 GB with FP8", (8, 9)),
    Kind("run_qwen3_8b_*_lora.sh", 4, 38_000, "4 GPUs of 40 GB"),
    Kind("run_qwen3_7b_lora_*.sh", 4, 38_000, "4 GPUs of 40 GB"),
    Kind("run_*_lora.sh", 4, 38_000, "4 GPUs of 40 GB"),
    Kind("run_qwen3_[78]b_*.sh", 8, 78_000, "8 GPUs of 80 GB"),
    Kind("run_*.sh", 8, 38_000, "8 GPUs of 40 GB"),
)


def kind_of(script: Path) -> Kind:
    """Return the kind of a launch script, whose path is relative to the repository."""
    if script.parts[0] in AGENT_FOLDERS:
        return next(kind for kind in OF_AGENTS if fnmatch(script.as_posix(), kind.pattern))
    return next(kind for kind in KINDS if fnmatch(script.name, kind.pattern))


def launch_scripts(root: Path) -> list[Path]:
    """Return every launch script of the methods and the agents, relative to the repository; those to start with first."""
    folders = sorted(path.parent for path in root.glob(f"openclaw-*/{CPU_SCRIPT}"))
    of_methods = [path for folder in folders for path in sorted(folder.glob("run_*.sh"))]
    of_agents = [path for name in AGENT_FOLDERS for path in sorted((root / name).glob("*.sh")) if path.stem != "common"]
    of_agents += sorted((root / "swe-rl" / "scripts").glob("run_*.sh"))
    relatives = [path.relative_to(root) for path in (*of_methods, *of_agents)]
    first = {name: number for number, name in enumerate(MAIN)}
    return sorted(relatives, key=lambda path: first.get(path.as_posix(), len(first)))


def suits(kind: Kind, gpus: Sequence[Gpu]) -> bool:
    """Return whether enough GPUs are large and new enough. A GPU whose memory is unknown does not count."""
    if kind is SEVERAL:
        return False
    large = [
        gpu
        for gpu in gpus
        if (gpu.memory_mib or 0) >= kind.memory_mib and (gpu.capability or (0, 0)) >= kind.capability
    ]
    return len(large) >= kind.gpus


def report(machine: Machine, root: Path, environment: str, variables: Mapping[str, str]) -> tuple[str, bool]:
    """Return the report and whether something can be run.

    Args:
        environment: what ``.venv`` is: ``none``, or a kind and a state (``cpu current``, ``gpu stale``).
    """
    chosen = variables.get("CUDA_VISIBLE_DEVICES")
    gpus = visible(machine.driver.gpus, chosen)
    base = base_problems(machine)
    cuda = _cuda_problems(machine, chosen)
    lines = [
        "Machine",
        *_machine_lines(machine, gpus, root),
        "Environment",
        f"  .venv       {environment}",
        "Launch scripts",
    ]
    fitting: list[str] = []
    unfit: dict[str, list[str]] = {}
    for script in launch_scripts(root):
        kind = kind_of(script)
        if script.name.startswith("run_tiny_cpu") and environment.startswith("gpu"):
            unfit.setdefault("the CPU environment, in another clone", []).append(script.as_posix())
        elif not base and suits(kind, gpus) and (kind.gpus == 0 or not cuda):
            fitting.append(f"  {script.as_posix():<62} {kind.words}")
        else:
            unfit.setdefault(kind.words, []).append(script.as_posix())
    lines += fitting or ["  none fits"]
    for words, names in unfit.items():
        count = f"{len(names)} scripts" if len(names) > 1 else "1 script"
        lines.append(f"  not here: {count} for {words}, such as {names[0]}")
    on_gpus = (
        bool(gpus)
        and not cuda
        and any(kind_of(script).gpus and suits(kind_of(script), gpus) for script in launch_scripts(root))
    )
    todo = [str(problem) for problem in (*base, *(cuda if machine.driver.installed else []))]
    todo += _environment_todo(environment, on_gpus)
    if not machine.driver.installed:
        todo.append(f"for GPU scripts: install the NVIDIA driver {MIN_DRIVER} or newer, then run this again")
    lines += ["To do", *(f"  - {line}" for line in todo or ["nothing"])]
    return "\n".join(lines), bool(fitting)


def _cuda_problems(machine: Machine, chosen: str | None) -> list[Problem]:
    return driver_problems(machine.driver, chosen) + toolkit_problems(machine.toolkit, machine.interpreter)


def _machine_lines(machine: Machine, gpus: tuple[Gpu, ...], root: Path) -> list[str]:
    glibc = "no GNU C library" if machine.glibc is None else "glibc {}.{}".format(*machine.glibc)
    memory = "unknown memory" if machine.memory_gb is None else f"{machine.memory_gb:.0f} GB memory"
    toolkit = machine.toolkit
    release = "" if toolkit.release is None else " {}.{}".format(*toolkit.release)
    python = machine.interpreter
    lines = [
        f"  processor   {machine.architecture}, {machine.cores} cores, {memory}, {glibc}",
        f"  disk        {free_gb(root)[1]:.0f} GB free",
        "  python      "
        + ("no 3.11 or 3.12" if python is None else "{}.{}.{} ({})".format(*python.version, python.command)),
        "  driver      " + (machine.driver.failure or f"{machine.driver.version} (needed: {MIN_DRIVER} or newer)"),
        f"  nvcc        {toolkit.nvcc or 'none'}{release}",
        f"  c++         {toolkit.compiler or 'none'}",
        f"  bubblewrap  {find_bubblewrap() or 'none; agents need it: bash scripts/setup_bubblewrap.sh'}",
        f"  Chromium    {find_chromium() or 'none; gui-rl needs it: bash scripts/setup_chromium.sh'}",
        f"  Xvfb        {shutil.which('Xvfb') or 'none; a desktop of gui-rl needs it: bash scripts/setup_desktop.sh'}",
    ]
    for gpu in machine.driver.gpus:
        size = "unknown memory" if gpu.memory_mib is None else f"{gpu.memory_mib / 1024:.0f} GiB"
        capability = "" if gpu.capability is None else ", compute capability {}.{}".format(*gpu.capability)
        hidden = "" if gpu in gpus else " (hidden by CUDA_VISIBLE_DEVICES)"
        lines.append(f"  GPU {gpu.index:<7} {gpu.name}, {size}{capability}{hidden}")
    return lines


def _environment_todo(environment: str, on_gpus: bool) -> list[str]:
    kind, _, state = environment.partition(" ")
    if on_gpus and kind == "cpu":
        return [".venv is for CPUs and this machine has GPUs; type: rm -r .venv && scripts/setup.sh gpu"]
    if state == "stale":
        return [f".venv does not match its lock, setup script or folder; type: scripts/setup.sh {kind}"]
    if kind == "none":
        return [f"there is no environment; type: scripts/setup.sh {'gpu' if on_gpus else 'cpu'}"]
    return []


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
