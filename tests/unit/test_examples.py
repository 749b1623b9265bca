"""Run the examples in docstrings, so that a broken one fails.

The modules are found by their ``>>>``; an example that needs GPUs, Ray or a network says ``# doctest: +SKIP``.
"""

from __future__ import annotations

import doctest
import importlib
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers.import_path import import_folders

ROOT = Path(__file__).resolve().parents[2]


def modules_with_examples() -> list[str]:
    """Return the names of the modules, whether git tracks them yet or not."""
    search = ["git", "-C", str(ROOT), "grep", "--untracked", "-lE", "^ *>>> ", "--", "*.py", ":!tests/"]
    paths = [ROOT / line for line in subprocess.run(search, capture_output=True, text=True, check=True).stdout.split()]
    roots = [*import_folders(ROOT), ROOT / "slime", ROOT]
    return sorted(_name(path, next(root for root in roots if root in path.parents)) for path in paths)


def _name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def failures_of(module: ModuleType) -> list[str]:
    """Return a report per example that does not do what it says."""
    runner, reports = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), []
    for test in doctest.DocTestFinder(exclude_empty=True).find(module):
        runner.run(test, out=reports.append)
    return reports


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_a_module_do_what_they_say(name: str) -> None:
    assert failures_of(importlib.import_module(name)) == []


def test_a_wrong_example_is_reported() -> None:
    module = ModuleType("wrong", "Add.\n\n>>> 2 + 2\n5\n")
    [report] = failures_of(module)
    assert "Expected:\n    5\nGot:\n    4" in report
