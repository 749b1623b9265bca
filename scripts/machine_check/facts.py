"""Read what the machine has: processor, C library, Python, NVIDIA driver and GPUs, CUDA toolkit, free disk space.

A fact that cannot be read is ``None``; reading never raises.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PATIENCE_SECONDS = 30
_GPU_FIELDS = ("index", "uuid", "name", "memory.total", "compute_cap", "driver_version")


@dataclass(frozen=True)
class Gpu:
    """One GPU that the driver reports; memory in MiB."""

    index: int
    uuid: str
    name: str
    memory_mib: int | None
    capability: tuple[int, int] | None


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver and its GPUs, or why they could not be read."""

    version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    failure: str | None = None
    installed: bool = True


@dataclass(frozen=True)
class Toolkit:
    """The CUDA compiler that SGLang and FlashInfer would use at run time, and the C++ compiler."""

    nvcc: str | None
    release: tuple[int, int] | None
    compiler: str | None


@dataclass(frozen=True)
class Interpreter:
    """A Python that could hold the environment."""

    command: str
    version: tuple[int, int, int]
    has_venv: bool
    has_headers: bool


@dataclass(frozen=True)
class Machine:
    """Everything the checks and the report look at."""

    system: str
    architecture: str
    glibc: tuple[int, int] | None
    cores: int
    memory_gb: float | None
    interpreter: Interpreter | None
    driver: Driver
    toolkit: Toolkit


def find_bubblewrap() -> str | None:
    """Return where bubblewrap is, as scripts/setup_bubblewrap.sh looks for it."""
    return shutil.which("bwrap")


def find_chromium() -> str | None:
    """Return where Chromium is if chromedriver is there too, as scripts/setup_chromium.sh looks for them."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    result = next((place for name in names if (place := shutil.which(name))), None)
    return result if shutil.which("chromedriver") else None


def _output(command: Sequence[str]) -> tuple[int | None, str]:
    """Return exit status and output of a command; the status is ``None`` if it did not start or end in time."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None, f"no answer within {PATIENCE_SECONDS} s"
    except OSError as error:
        return None, str(error)
    return done.returncode, done.stdout if done.returncode == 0 else done.stdout + done.stderr


def _pair(text: str) -> tuple[int, int] | None:
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match.group(1)), int(match.group(2))) if match else None


def read_driver() -> Driver:
    """Ask nvidia-smi for the driver's version and the GPUs."""
    if shutil.which("nvidia-smi") is None:
        return Driver(failure="nvidia-smi is not installed", installed=False)
    status, output = _output(["nvidia-smi", "--query-gpu=" + ",".join(_GPU_FIELDS), "--format=csv,noheader,nounits"])
    lines = [line for line in output.splitlines() if line.strip()]
    if status != 0:
        return Driver(failure="nvidia-smi failed: " + (lines[0].strip() if lines else f"exit status {status}"))
    gpus: list[Gpu] = []
    version = None
    for line in lines:
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != len(_GPU_FIELDS) or not parts[0].isdigit():
            return Driver(failure=f"nvidia-smi printed {line!r} where a GPU was expected")
        index, uuid, name, memory, capability, version = parts
        gpus.append(Gpu(int(index), uuid, name, int(memory) if memory.isdigit() else None, _pair(capability)))
    return Driver(version, tuple(gpus), None if gpus else "nvidia-smi sees no GPU")


def visible(gpus: Sequence[Gpu], chosen: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves visible.

    As CUDA does, the list ends at the first entry that names no GPU. A MIG instance matches no GPU here.
    """
    if chosen is None:
        return tuple(gpus)
    results: list[Gpu] = []
    for entry in (part.strip() for part in chosen.split(",")):
        match = [
            gpu
            for gpu in gpus
            if entry and (entry == str(gpu.index) or (entry[:4] == "GPU-" and gpu.uuid.startswith(entry)))
        ]
        if len(match) != 1:
            break
        results += match
    return tuple(results)


def read_toolkit(environment: Mapping[str, str]) -> Toolkit:
    """Find nvcc in the order SGLang's and FlashInfer's kernels do: CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda."""
    home = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    path = os.path.join(home, "bin", "nvcc") if home else shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    nvcc = path if os.access(path, os.X_OK) else None
    status, output = _output([nvcc, "--version"]) if nvcc else (None, "")
    release = re.search(r"release (\d+\.\d+)", output) if status == 0 else None
    compiler = shlex.split(environment.get("CXX") or "c++")[0]  # CXX="ccache g++" is a command with words
    return Toolkit(nvcc, _pair(release.group(1)) if release else None, shutil.which(compiler))


def read_interpreter(command: str) -> Interpreter | None:
    """Ask a Python for its version, for venv and for the C headers that Triton compiles against."""
    program = (
        "import importlib.util as u, json, os, sys, sysconfig as s; print(json.dumps([list(sys.version_info[:3]), "
        "all(u.find_spec(n) for n in ('venv', 'ensurepip')), os.path.exists(os.path.join(s.get_paths()['include'], 'Python.h'))]))"
    )
    status, output = _output([command, "-c", program])
    if status != 0:
        return None
    version, has_venv, has_headers = json.loads(output)
    return Interpreter(command, (version[0], version[1], version[2]), has_venv, has_headers)


def read_glibc() -> tuple[int, int] | None:
    """Return the version of the GNU C library, or ``None`` on another C library."""
    try:
        return _pair(os.confstr("CS_GNU_LIBC_VERSION") or "")
    except (ValueError, OSError):
        return None


def read_memory_gb() -> float | None:
    """Return the machine's memory in GB."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    except (ValueError, OSError):
        return None


def read_machine(python: str, environment: Mapping[str, str]) -> Machine:
    """Return the facts; ``python`` is the interpreter for the environment, empty if none fits."""
    return Machine(
        system=platform.system(),
        architecture=platform.machine(),
        glibc=read_glibc(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gb=read_memory_gb(),
        interpreter=read_interpreter(python) if python else None,
        driver=read_driver(),
        toolkit=read_toolkit(environment),
    )


def free_gb(path: Path) -> tuple[int, float]:
    """Return the device that holds a path (which need not exist) and its free space in GB."""
    while not path.exists():
        path = path.parent
    return path.stat().st_dev, shutil.disk_usage(str(path)).free / 1e9
