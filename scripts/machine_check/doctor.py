"""Report what this machine can run: hardware, environment, launch scripts that fit, what is missing."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from machine_check.checks import MIN_DRIVER, Problem, base_problems, driver_problems, toolkit_problems
from machine_check.facts import Gpu, Machine, find_bubblewrap, find_chromium, free_gb, visible
from machine_check.scripts_that_fit import kind_of, launch_scripts, suits


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
