"""Which changes of an agent count: those that mend the program, not those that decide how it is tested.

Dropped are tests and what configures them, start files of Python, modules that would take the place of the standard library's or the test
tools', and settings of CI. A path that the known solution changes counts, whatever its name. Pure.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import PurePosixPath

TEST_FOLDERS = ("test", "tests", "testing", ".github", ".circleci", ".git")
TEST_FILES = (
    *(
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "tox.ini",
        "noxfile.py",
        "setup.cfg",
        "pyproject.toml",
        "runtests.py",
    ),
    *("sitecustomize.py", "usercustomize.py", ".coveragerc", ".gitattributes", ".gitmodules"),
)
TEST_TOOLS = frozenset(("pytest", "_pytest", "pluggy", "iniconfig", "py", "nose", "hypothesis", "coverage", "xdist"))
ENDINGS = (".pth", ".pyc", ".so", ".egg-link")


def is_protected(path: str, solution: Collection[str] = ()) -> bool:
    """Return whether a change of a path is dropped.

    Args:
        path: below the repository.
        solution: paths that the known solution changes.
    """
    if path in solution:
        return False
    name = PurePosixPath(path)
    return (
        any(part in TEST_FOLDERS for part in name.parts)
        or name.name in TEST_FILES
        or name.name.startswith("test_")
        or name.stem.endswith(("_test", "_tests"))
        or name.suffix in ENDINGS
        or any(part.endswith((".dist-info", ".egg-info")) for part in name.parts[:-1])
        or _shadows(name)
    )


def _shadows(path: PurePosixPath) -> bool:
    """Return whether a path is a top-level module that has the name of one that the tests need."""
    for root in ("src", "lib"):
        if path.is_relative_to(root) and len(path.parts) > 1:
            path = path.relative_to(root)
            break
    top = next(iter(path.parts)) if len(path.parts) > 1 else path.stem if path.suffix == ".py" else ""
    return top in sys.stdlib_module_names or top in TEST_TOOLS
