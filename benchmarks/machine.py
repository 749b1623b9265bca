"""What machine a figure was measured on; written into every baseline."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def git(root: Path, *arguments: str) -> str | None:
    """Return what git says of a checkout, None where there is no git or no repository."""
    command = ["git", "-C", str(root), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def describe_machine() -> dict:
    """Return processor, cores, memory in GiB, versions of the libraries that matter, commit and date.

    ``commit`` is None outside a repository; ``tree_clean`` is true only where git says so.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("torch", "sglang", "ray", "transformers", "peft")},
        "commit": git(REPOSITORY, "rev-parse", "--short", "HEAD"),
        "tree_clean": git(REPOSITORY, "status", "--porcelain") == "",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
