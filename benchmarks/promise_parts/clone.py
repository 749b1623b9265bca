"""A copy of the working tree, as a clone with its environment would be: what a row writes stays in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.machine import REPOSITORY


def make_clone(folder: Path) -> Path:
    """Copy every file that git tracks, or is about to, and link the environment that runs this; return ``folder``.

    Raises:
        subprocess.CalledProcessError: the working tree is no git repository.
    """
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listing, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        source = REPOSITORY / name
        if source.is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name)
    (folder / ".venv").symlink_to(sys.prefix)
    return folder
