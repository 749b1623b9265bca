"""A copy of the working tree with an environment of its own, as a user's clone would be: what a row writes stays in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from benchmarks.machine import REPOSITORY

IMPORT_PATH = "openclaw_rl.pth"
"""The file by which `scripts/setup.sh` tells an environment where the project is."""


def make_clone(folder: Path) -> Path:
    """Copy every file that git tracks, or is about to, and make its environment; return ``folder``.

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
    make_environment(folder)
    return folder


def make_environment(clone: Path) -> None:
    """Make the clone's `.venv`: the packages and programs of the environment that runs this, and the clone's own code.

    Nothing that a row installs reaches the other environment; `scripts/setup.sh` takes this one for complete.
    """
    theirs, ours = Path(sys.prefix), clone / ".venv"
    venv.create(ours, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(ours)}))
    packages = sysconfig.get_path("purelib")
    (site / IMPORT_PATH).write_text(f"{clone / 'slime'}\n{clone}\nimport site; site.addsitedir({packages!r})\n")
    for program in (theirs / "bin").iterdir():
        place = ours / "bin" / program.name
        if place.exists() or not program.is_file():
            continue
        text = program.read_bytes()
        if text.startswith(b"#!"):
            place.write_bytes(text.replace(str(theirs).encode(), str(ours).encode()))
            place.chmod(0o755)
        else:
            place.symlink_to(program)
    for stamp in theirs.glob(".setup-*"):
        (ours / stamp.name).write_text(stamp.read_text().replace(str(REPOSITORY), str(clone)))
