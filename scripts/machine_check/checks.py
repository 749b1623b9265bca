"""Decide whether the CUDA environment can be installed and work here.

Guarantees: all problems come at once, and each says what is wrong and what to type. The needs are those of ``requirements/gpu.txt``:
torch 2.14.1 is built for CUDA 13, SGLang's and FlashInfer's kernels compile at their first use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from machine_check.facts import Driver, Interpreter, Machine, Toolkit, free_gb, visible

MIN_DRIVER = 580
MIN_GLIBC = (2, 34)
MIN_CAPABILITY = (8, 0)
CUDA_MAJOR = 13
PYTHONS = ((3, 11), (3, 12))
# Measured with requirements/gpu.txt on Python 3.11: 4.6 GB of wheels make an environment of 11.7 GB. A tenth is added
# (log/installation.md#gpu-lock).
WHEELS_GB = 5.0
ENVIRONMENT_GB = 13.0


@dataclass(frozen=True)
class Problem:
    """What is wrong, and what to do."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


def base_problems(machine: Machine) -> list[Problem]:
    """Return what keeps any environment of this project from working."""
    problems: list[Problem] = []
    if machine.system != "Linux" or machine.architecture != "x86_64":
        problems.append(
            Problem(
                f"this is {machine.system} on {machine.architecture}",
                "use Linux on x86-64, which the locks are resolved for",
            )
        )
    elif machine.glibc is None or machine.glibc < MIN_GLIBC:
        result = "no GNU C library" if machine.glibc is None else f"glibc {machine.glibc[0]}.{machine.glibc[1]}"
        problems.append(
            Problem(f"{result} where SGLang's wheels need 2.34", "use Debian 12, Ubuntu 22.04, RHEL 9 or newer")
        )
    return problems + python_problems(machine.interpreter)


def python_problems(interpreter: Interpreter | None) -> list[Problem]:
    """Return what keeps the environment from being made."""
    if interpreter is None or interpreter.version[:2] not in PYTHONS:
        result = "no Python 3.11 or 3.12" if interpreter is None else "Python {}.{}.{}".format(*interpreter.version)
        return [
            Problem(
                f"{result} found",
                "type: apt-get install python3.12 python3.12-venv python3.12-dev, or set PYTHON=/usr/bin/python3.11",
            )
        ]
    name = "python{}.{}".format(*interpreter.version)
    if not interpreter.has_venv:
        return [Problem(f"{interpreter.command} has no venv module", f"type: apt-get install {name}-venv")]
    return []


def driver_problems(driver: Driver, chosen: str | None) -> list[Problem]:
    """Return what is wrong with the driver and the GPUs; ``chosen`` is ``CUDA_VISIBLE_DEVICES``."""
    if driver.failure is not None or driver.version is None:
        remedy = f"install the NVIDIA driver {MIN_DRIVER} or newer and see that `nvidia-smi` lists the GPUs"
        return [Problem(driver.failure or "nvidia-smi names no driver version", remedy)]
    problems: list[Problem] = []
    major = driver.version.split(".")[0]
    if not major.isdigit() or int(major) < MIN_DRIVER:
        problems.append(
            Problem(
                f"NVIDIA driver {driver.version} is too old for CUDA {CUDA_MAJOR}",
                f"install driver {MIN_DRIVER} or newer (Ubuntu: apt-get install nvidia-driver-{MIN_DRIVER}-server-open) and reboot; "
                "there is no older set of packages",
            )
        )
    if not visible(driver.gpus, chosen):
        problems.append(
            Problem(
                f"CUDA_VISIBLE_DEVICES={chosen} leaves no whole GPU",
                "unset it, or name GPUs by number: CUDA_VISIBLE_DEVICES=0,1",
            )
        )
    for gpu in visible(driver.gpus, chosen):
        if gpu.capability is not None and gpu.capability < MIN_CAPABILITY:
            capability = "{}.{}".format(*gpu.capability)
            problems.append(
                Problem(
                    f"GPU {gpu.index} ({gpu.name}) has compute capability {capability} where the kernels need 8.0 (Ampere)",
                    "leave it out of CUDA_VISIBLE_DEVICES",
                )
            )
    return problems


def toolkit_problems(toolkit: Toolkit, interpreter: Interpreter | None) -> list[Problem]:
    """Return what keeps kernels from being compiled at run time. Ninja comes with the lock."""
    install = "type: apt-get install cuda-toolkit-13-0 (NVIDIA's repository), or set CUDA_HOME to a CUDA 13 toolkit"
    problems: list[Problem] = []
    if toolkit.nvcc is None:
        problems.append(
            Problem("no nvcc in CUDA_HOME, PATH or /usr/local/cuda, which SGLang's kernels are compiled with", install)
        )
    elif toolkit.release is None:
        problems.append(Problem(f"{toolkit.nvcc} --version names no release", install))
    elif toolkit.release[0] != CUDA_MAJOR:
        problems.append(
            Problem("{} is CUDA {}.{}, torch is built for CUDA 13".format(toolkit.nvcc, *toolkit.release), install)
        )
    if toolkit.compiler is None:
        problems.append(Problem("no C++ compiler (c++ or CXX)", "type: apt-get install g++"))
    if interpreter is not None and not interpreter.has_headers:
        name = "python{}.{}".format(*interpreter.version)
        problems.append(
            Problem(
                f"{interpreter.command} has no Python.h, which Triton compiles against",
                f"type: apt-get install {name}-dev",
            )
        )
    return problems


def space_problems(environment: Path, variables: Mapping[str, str]) -> list[Problem]:
    """Return the file systems that are too small for the environment, pip's temporary files and pip's cache."""
    cache = variables.get("XDG_CACHE_HOME") or os.path.join(variables.get("HOME") or os.path.expanduser("~"), ".cache")
    wants = [
        (environment, ENVIRONMENT_GB, "the environment"),
        (Path(variables.get("TMPDIR") or "/tmp"), WHEELS_GB, "TMPDIR"),
    ]
    if variables.get("PIP_NO_CACHE_DIR", "").lower() not in ("1", "true", "yes", "on"):
        wants.append((Path(variables.get("PIP_CACHE_DIR") or os.path.join(cache, "pip")), WHEELS_GB, "pip's cache"))
    devices: dict[int, list[tuple[Path, float, str]]] = {}
    free: dict[int, float] = {}
    for path, size, name in wants:
        device, free[device] = free_gb(path)
        devices.setdefault(device, []).append((path, size, name))
    problems: list[Problem] = []
    for device, users in devices.items():
        needed = sum(size for _, size, _ in users)
        if free[device] < needed:
            names = " and ".join(f"{name} ({path})" for path, _, name in users)
            problems.append(
                Problem(
                    f"{free[device]:.1f} GB free where {names} need {needed:.1f} GB",
                    "free some, set TMPDIR or PIP_CACHE_DIR to a larger disk, or set PIP_NO_CACHE_DIR=1",
                )
            )
    return problems
