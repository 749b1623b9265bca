"""What the measured machine is: its GPUs as the driver and torch see them, and which packages the steps can import.

Guarantee: the asking process never starts CUDA, whose context would take memory from what is measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.machine import REPOSITORY, describe_machine

PROBE_SECONDS = 180.0
_PROBE = """
import importlib.util, json, sys
import torch
devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
nccl = ".".join(map(str, torch.cuda.nccl.version())) if devices else None
print(json.dumps({
    "torch": torch.__version__, "torch_cuda": torch.version.cuda, "nccl": nccl,
    "gpus": [{"name": d.name, "memory_gib": round(d.total_memory / 2**30, 1), "capability": f"{d.major}.{d.minor}"} for d in devices],
    "missing": [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None],
}))
"""


def probe(packages: Sequence[str]) -> dict[str, Any]:
    """Return torch's versions, its GPUs, and which of ``packages`` (top-level names) are ``missing``.

    Raises:
        RuntimeError: when torch cannot be imported; with the end of what it said.
    """
    command = [sys.executable, "-c", _PROBE, *packages]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    if result.returncode:
        raise RuntimeError(f"{sys.executable} cannot import torch:\n{result.stderr[-1000:]}")
    return json.loads(result.stdout.rstrip().rpartition("\n")[2])


def driver_version() -> str | None:
    """Return the version of the NVIDIA driver, None where ``nvidia-smi`` does not answer."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = result.stdout.split()
    return lines[0] if result.returncode == 0 and lines else None


def describe(found: dict[str, Any]) -> dict[str, Any]:
    """Return the machine for the file of figures; ``found`` is what :func:`probe` gave."""
    own = {key: found[key] for key in ("gpus", "torch_cuda", "nccl")}
    return describe_machine() | own | {"driver": driver_version()}
