"""Which run fits this machine, and what keeps it from running here.

Guarantees: nothing is downloaded, installed or changed; every problem comes at once, with what to type. The checks are those of
``scripts/setup.sh`` (`machine_check`) and, in a clone, the plan of the launcher with its memory budget.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from openclaw.launch.profiles import GPU1_16GB, PROFILES
from openclaw.models.places import KNOWN, KnownModel, missing_files
from openclaw.runtime.where import shown_path

try:
    from machine_check import checks, facts
    from machine_check.__main__ import kind_of, suits
except ImportError:  # a clone, where it stands beside the set-up that asks it before there is an environment
    sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
    from machine_check import checks, facts
    from machine_check.__main__ import kind_of, suits

if TYPE_CHECKING:
    from machine_check.facts import Machine

OWN = Path(__file__).resolve().parents[2]
"""The folder that this package lies in: a clone, or where a wheel was unpacked."""
CPU_GB = 3.0
"""What the packages of the CPU environment take (instructions/installation.md)."""
CLONE = Path("scripts", "launch.sh")
"""A file of the repository by which a clone is known."""
PLAN_SECONDS = 120


@dataclass(frozen=True)
class Run:
    """A run that init can write.

    Attributes:
        name: the answer that chooses it.
        what: the machine that it is for.
        script: its launch script.
        method: that it trains by.
        profile: of the launcher.
        words: options of the script.
        model: that it trains; None: the tiny one of the repository.
        context: ``CONTEXT_LENGTH`` of the profile.
    """

    name: str
    what: str
    script: Path
    method: str
    profile: str
    words: tuple[str, ...] = ()
    model: KnownModel | None = None
    context: int = 32768

    @property
    def judged_elsewhere(self) -> bool:
        """Whether it has no room for a judge of its own."""
        return self.profile == GPU1_16GB.name


def _model(name: str) -> KnownModel:
    return next(model for model in KNOWN if model.name == name)


def _runs() -> tuple[Run, ...]:
    """Read the table of runs: methods are folders, which this package does not know."""
    rows = tomllib.loads(files("openclaw.init").joinpath("runs.toml").read_text(encoding="utf-8"))["run"]
    return tuple(
        Run(
            row["name"],
            row["what"],
            Path(row["script"]),
            row["method"],
            profile.name,
            words=tuple(row.get("words", ())),
            model=_model(row["model"]) if "model" in row else None,
            context=int(profile.runtime.get("CONTEXT_LENGTH", Run.context)),
        )
        for row in rows
        for profile in [PROFILES[row["profile"]]]
    )


RUNS = _runs()
"""The largest first."""


def read(environment: Mapping[str, str]) -> Machine:
    """Return the facts of this machine; the interpreter is that of ``PYTHON``, else this one."""
    return facts.read_machine(environment.get("PYTHON") or sys.executable, environment)


def fitting(machine: Machine, environment: Mapping[str, str]) -> list[Run]:
    """Return the runs that fit the GPUs that are visible, the largest first; that of a CPU always does."""
    gpus = facts.visible(machine.driver.gpus, environment.get("CUDA_VISIBLE_DEVICES"))
    return [run for run in RUNS if suits(kind_of(run.script), gpus)]


def problems(run: Run, machine: Machine, clone: Path, environment: Mapping[str, str]) -> list[str]:
    """Return what keeps a run from this machine, one line each: system, driver, CUDA, memory of the GPUs, disk."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    found = [*checks.base_problems(machine)]
    if run.model is not None:
        found += checks.driver_problems(machine.driver, chosen)
        found += checks.toolkit_problems(machine.toolkit, machine.interpreter)
        if not (clone / ".venv" / ".setup-gpu").is_file():
            found += checks.space_problems(clone / ".venv", environment)
    lines = [str(problem) for problem in found]
    gpus = facts.visible(machine.driver.gpus, chosen)
    if gpus and run not in fitting(machine, environment):
        seen = ", ".join(f"{(gpu.memory_mib or 0) / 1024:.0f} GiB" for gpu in gpus)
        lines.append(
            f"{run.name} is for {kind_of(run.script).words}, and this machine has {seen}; choose another --run"
        )
    return lines + _disk(run, clone)


def has_cpu_environment(clone: Path) -> bool:
    """Return whether a clone has the packages that a run on a CPU needs."""
    return (clone / ".venv" / ".setup-cpu").is_file()


def _disk(run: Run, clone: Path) -> list[str]:
    """Return a line if the disk has no room for the packages on a CPU, or for the model."""
    if run.model is None:
        needed, what = (0.0 if has_cpu_environment(clone) else CPU_GB), "the packages"
    else:
        place = clone / "models" / run.model.name
        needed, what = (0.0 if is_model(place) else run.model.gigabytes), run.model.name
    free = facts.free_gb(clone)[1]
    if free >= needed:
        return []
    return [
        f"{free:.1f} GB free at {clone} where {what} needs {needed:.1f} GB; free some, or choose another --repository"
    ]


def is_model(folder: Path) -> bool:
    """Return whether a folder has a whole checkpoint."""
    try:
        return folder.is_dir() and not missing_files(folder)
    except (ValueError, KeyError, OSError):
        return False


def is_clone(folder: Path) -> bool:
    """Return whether a folder is the repository."""
    return (folder / CLONE).is_file()


def find_clone(here: Path) -> Path | None:
    """Return the repository that this module is part of, else the one around a folder; None without one."""
    return next((folder for folder in (OWN, here, *here.parents) if is_clone(folder)), None)


def plan_problems(run: Run, clone: Path, variables: Mapping[str, str]) -> list[str]:
    """Return why the launcher of a clone refuses the run with these variables: its memory budget, limits and folders.

    The demo of a CPU plans when it starts, because its plan needs its environment.
    """
    if run.model is None or not is_clone(clone):
        return []
    path = os.pathsep.join([str(clone), str(clone / "slime"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **variables, "PYTHONPATH": path}
    model = run.model.name.replace("Qwen", "qwen")
    words = [
        sys.executable,
        "-m",
        "openclaw.launch",
        "--method",
        run.method,
        "--model",
        model,
        "--profile",
        run.profile,
    ]
    try:
        done = _run([*words, "--dry-run"], clone, environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [
            f"the launcher of {shown_path(clone)} does not answer ({error}); type: bash {clone / run.script} --dry-run"
        ]
    if done.returncode == 0:
        return []
    return [line for line in done.stderr.splitlines() if line.strip()] or [f"the launcher ended with {done.returncode}"]


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PLAN_SECONDS, check=False
    )
