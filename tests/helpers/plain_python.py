"""A Python environment with a few packages alone, such as torch, transformers and pytest: links to what is installed here."""

from __future__ import annotations

import os
import venv
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOTS = ("torch", "transformers", "safetensors", "numpy", "pytest")
ABSENT = ("sglang", "ray", "fastapi", "orjson", "limits", "megatron", "peft", "psutil", "hypothesis", "pytest_asyncio")


def plain_python(folder: Path, roots: Iterable[str] = ROOTS) -> Path:
    """Make an environment with ``roots`` and what they require in ``folder``; return its interpreter."""
    venv.EnvBuilder(symlinks=True).create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    wanted, seen = list(roots), set()
    while wanted:
        name = wanted.pop()
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # what only a build with CUDA needs
            continue
        if found.metadata["Name"] in seen:
            continue
        seen.add(found.metadata["Name"])
        for top in {file.parts[0] for file in found.files or [] if file.parts[0] != ".."}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))
        requirements = [Requirement(text) for text in found.requires or []]
        wanted += [one.name for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
    return folder / "bin" / "python"


def plain_environment(repository: Path) -> dict[str, str]:
    """Return the variables of a process of that interpreter."""
    left_out = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTEST_ADDOPTS")
    own = {name: value for name, value in os.environ.items() if name not in left_out}
    return own | {"PYTHONPATH": os.pathsep.join([str(repository), str(repository / "slime")]), "PYTHONNOUSERSITE": "1"}
