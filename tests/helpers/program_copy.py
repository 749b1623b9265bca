"""A copy of the program, in which a test may add folders."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def copied(repository: Path, root: Path) -> Path:
    """Copy what is tracked or new, but no weights, to ``root``, with the same virtual environment; return ``root``."""
    tracked = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=repository, capture_output=True, text=True, check=True
    )
    for name in filter(None, tracked.stdout.split("\0")):
        if (repository / name).is_file() and not name.endswith(".safetensors"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(repository / name, root / name)
    (root / ".venv").symlink_to(repository / ".venv")
    return root
