"""Files of a run hold conversations: only their owner may read them.

Guarantee: after `keep_private`, this process and its children create folders with mode 0700 and files with mode 0600.
Files that exist keep their mode.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

OWNER_ONLY = 0o077
FILE_MODE = 0o600
FOLDER_MODE = 0o700


def keep_private() -> None:
    """Take away the rights of group and others from what is created from now on."""
    os.umask(OWNER_ONLY)


def create_private(path: Path) -> None:
    """Create a file and its folder for the owner only, unless they exist; errors are left to whoever opens the file."""
    path.parent.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, FILE_MODE))
