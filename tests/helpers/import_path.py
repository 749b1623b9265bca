"""The folders beside the packages whose modules tests import by name: methods, agents, programs.

Guarantee: no list names them. A folder with a dash in its name and Python files is one, and so is a folder below it that is not a package.
"""

from __future__ import annotations

import sys
from pathlib import Path


def import_folders(root: Path) -> list[Path]:
    """Return the folders in a fixed order."""
    tops = sorted(folder for folder in root.glob("*-*") if any(folder.glob("*.py")))
    inner = [below for top in tops for below in sorted(top.iterdir()) if below.is_dir() and any(below.glob("*.py"))]
    return [root / "scripts", *tops, *(below for below in inner if not (below / "__init__.py").exists())]


def add_folders(root: Path) -> None:
    """Put the folders on the import path, behind what is there."""
    sys.path += [str(folder) for folder in import_folders(root) if str(folder) not in sys.path]
