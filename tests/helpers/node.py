"""Node packages for tests: installed by ``scripts/setup_node.sh``, or the reason why they are not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def node_packages(name: str) -> Path:
    """Return the folder into which a set of packages is installed; install it first if it is missing.

    Skips the test with the reason where it cannot be installed. In CI (``CI`` is set) it fails instead: these tests
    must run there.
    """
    command = [str(REPOSITORY / "scripts/setup_node.sh"), name]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        if os.environ.get("CI"):
            pytest.fail(f"{reason}\n{done.stderr}")
        pytest.skip(reason)
    return REPOSITORY / ".cache/node" / name
