"""Folders of others, such as data sets of tasks: no symbolic link in one is followed, so none leads to a file of the operator's."""

from __future__ import annotations

import os
from pathlib import Path

from groundwork.exceptions import ConfigError


def unlinked(folder: Path, path: Path) -> Path:
    """Return a path below a folder; the folder itself may be a link, since the operator named it.

    Raises:
        ConfigError: the path leaves the folder, or one of its steps is a symbolic link.
    """
    steps = Path(os.path.relpath(path, folder)).parts
    if os.pardir in steps:
        raise ConfigError(f"{path} leaves {folder}; put the file below it")
    place = folder
    for step in steps:
        place /= step
        if place.is_symlink():
            raise ConfigError(f"{place} is a symbolic link; put the file itself there")
    return path
