"""What this machine offers a process: CPU cores, memory, the NVIDIA driver, the CUDA version of the installed torch.

Guarantees: imports neither torch nor Ray, leaves this process without a CUDA context, and answers within
``PROBE_SECONDS`` plus the time of `nvidia-smi`.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROBE_SECONDS = 60.0
"""The first initialisation of a machine's GPUs takes seconds per GPU."""
_KERNEL_MODULE = Path("/proc/driver/nvidia/version")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Of a container, by version 2 and 1 of control groups."""
_DRIVER_LIBRARY = "libcuda.so.1"
# What torch's runtime does first, without torch. Runs in a fresh process, because a CUDA context does not survive a fork.
_PROBE = """
import ctypes, json
found = {"error": None, "code": 0, "cuda": 0, "devices": 0}
try:
    driver = ctypes.CDLL(%r)
except OSError as error:
    found["error"] = str(error)
else:
    number, text = ctypes.c_int(), ctypes.c_char_p()
    driver.cuDriverGetVersion(ctypes.byref(number))
    found["cuda"] = number.value
    found["code"] = driver.cuInit(0)
    if found["code"]:
        driver.cuGetErrorString(found["code"], ctypes.byref(text))
        found["error"] = (text.value or b"unknown error").decode()
    else:
        driver.cuDeviceGetCount(ctypes.byref(number))
        found["devices"] = number.value
print(json.dumps(found))
"""


@dataclass(frozen=True)
class CudaFacts:
    """Facts that decide whether torch can use CUDA here.

    Attributes:
        torch: version of the installed torch; None if not installed.
        built_for: torch's CUDA version, such as ``13.0``; None for a build without CUDA.
        driver: version of the NVIDIA driver, such as ``580.65.06``; None if unknown.
        supports: newest CUDA version of the driver's library, such as 13000; 0 without the library.
        code: result of ``cuInit``; 0 if it worked or was not reached.
        error: the library's message, or why it cannot be loaded; None if it works.
        devices: GPUs visible to a process with this environment.
    """

    torch: str | None
    built_for: str | None
    driver: str | None
    supports: int
    code: int
    error: str | None
    devices: int


def cuda_facts(environment: Mapping[str, str] | None = None) -> CudaFacts:
    """Return the facts for a process with ``environment``; default: this process's."""
    version, built_for = torch_build()
    environment = os.environ if environment is None else environment
    command = [sys.executable, "-I", "-c", _PROBE % _DRIVER_LIBRARY]
    try:
        answer = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, check=False, timeout=PROBE_SECONDS
        )
    except subprocess.TimeoutExpired:
        result = {"cuda": 0, "code": 0, "devices": 0, "error": f"no answer within {PROBE_SECONDS:.0f} s"}
    else:
        ended = f"the driver's library ended the probe process with status {answer.returncode}"
        crashed = {"cuda": 0, "code": 0, "devices": 0, "error": ended}
        result = crashed if answer.returncode else json.loads(answer.stdout)
    return CudaFacts(
        version, built_for, driver_version(), result["cuda"], result["code"], result["error"], result["devices"]
    )


def torch_build() -> tuple[str | None, str | None]:
    """Return version and CUDA version of the installed torch, from its ``version.py``; (None, None) without torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None, None
    values: dict[str, Any] = {}
    for node in ast.parse(Path(spec.origin).with_name("version.py").read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                values[target.id] = node.value.value
    return values.get("__version__"), values.get("cuda")


def driver_version() -> str | None:
    """Return the version of the NVIDIA driver, from its kernel module or `nvidia-smi`; None without one."""
    if _KERNEL_MODULE.is_file() and (
        match := re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", _KERNEL_MODULE.read_text())
    ):
        return match[1]
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROBE_SECONDS)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    lines = answer.stdout.split()
    return lines[0] if answer.returncode == 0 and lines else None


def usable_cores() -> int:
    """Return the cores that this process may use: its affinity, bounded by its container's quota."""
    cores = len(os.sched_getaffinity(0))
    if _QUOTA.is_file():
        quota, period = _QUOTA.read_text().split()
        if quota != "max":
            cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(1, cores)


def usable_memory_mib() -> int:
    """Return the memory that this process may use, in MiB: the machine's, bounded by its container's limit."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in _MEMORY_LIMITS:
        if file.is_file() and (text := file.read_text().strip()) != "max":
            limits.append(int(text))
    return min(limits) // 2**20


def with_programs(path: str) -> str:
    """Return ``path`` with this interpreter's program folder appended, unless it is already there."""
    own = str(Path(sys.executable).parent)
    return path if own in path.split(os.pathsep) else os.pathsep.join(filter(None, (path, own)))


def this_host() -> str:
    """Return an id that is equal for processes that share kernel and container, and so ``/proc``."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"
