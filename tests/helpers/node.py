"""Programs of others for tests: installed by the scripts of ``scripts/``, or the reason why they are not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def node_packages(name: str) -> Path:
    """Return the folder into which a set of Node packages is installed; see `installed_by`."""
    installed_by("scripts/setup_node.sh", name)
    return REPOSITORY / ".cache/node" / name


def installed_by(script: str, *words: str) -> None:
    """Have a script install what it does not find.

    Skips the test with the reason where it cannot be installed. In CI (``CI`` is set) it fails instead: these tests
    must run there.
    """
    done = subprocess.run([str(REPOSITORY / script), *words], capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        if os.environ.get("CI"):
            pytest.fail(f"{reason}\n{done.stderr}")
        pytest.skip(reason)
