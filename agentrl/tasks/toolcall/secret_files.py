"""Keeps files with secrets out of what tools can read of the host.

A folder of tools may lie beside a ``.env``. Guarantee: a sandbox that starts has an unreadable file in place of each `SECRET` that the folders have
then, at any depth. Other names are readable, so a folder of tools should hold nothing but tools.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from agentrl.sandbox.interface import Mount
from groundwork.exceptions import ConfigError

SECRET = (
    ".env",
    ".env.*",
    "*.env",
    ".envrc",
    ".netrc",
    ".git-credentials",
    ".npmrc",
    ".pypirc",
    "id_rsa",
    "id_ed25519",
)
NOTHING = Path("/dev/null")
MAX_FILES = 20_000
"""Of one folder; more are not a folder of tools, and a search of them would slow every episode down."""


def covers(mounts: Iterable[Mount]) -> list[Mount]:
    """Return mounts that lie over the secrets of folders that are mounted before.

    Raises:
        ConfigError: a folder has too many files.
    """
    return [Mount(NOTHING, f"{mount.inside}/{path}") for mount in mounts for path in secrets_of(mount.host)]


def secrets_of(folder: Path) -> list[str]:
    """Return the secrets of a folder, relative to it; links are not followed, because a sandbox has what they lead to covered, or not at all.

    Raises:
        ConfigError: it has more than `MAX_FILES`.
    """
    results: list[str] = []
    count = 0
    for place, _, files in os.walk(folder):
        count += len(files)
        if count > MAX_FILES:
            raise ConfigError(
                f"{folder} has more than {MAX_FILES:,} files, and tools of TOOLS_CONFIG would read them all; move the tools to "
                "a folder of their own, and name it with folder"
            )
        for name in files:
            path = Path(place, name)
            if not path.is_symlink() and any(fnmatch(name, pattern) for pattern in SECRET):
                results.append(path.relative_to(folder).as_posix())
    return sorted(results)
