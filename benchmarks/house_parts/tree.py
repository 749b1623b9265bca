"""Read the Python files of a checkout without importing them.

Guarantees: the files are those that git tracks or would add; without git, all that are not in a folder whose name starts
with a dot. A link is not followed. Test code is every file below a folder ``tests``, and the tests' kit; all other Python is the
product, benchmarks and evaluation included. A line is a newline character, as ``wc -l`` counts. Only product files are parsed.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from benchmarks.machine import git

TESTS = "tests"
KIT = "lab/testkit/"


@dataclass(frozen=True)
class Module:
    """One Python file of the product; ``path`` is relative to the checkout, with forward slashes."""

    path: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        """Number of lines."""
        return self.text.count("\n")

    @property
    def folder(self) -> str:
        """The folder that holds the file: the package that the module belongs to."""
        return str(PurePosixPath(self.path).parent)

    @property
    def is_package_file(self) -> bool:
        """Whether this is an ``__init__.py``."""
        return self.path.rsplit("/", 1)[-1] == "__init__.py"


class Tree:
    """The files of the checkout at ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def files(self) -> list[str]:
        """All files, sorted."""
        return sorted(path for path in _paths(self.root) if (self.root / path).is_file())

    @cached_property
    def project(self) -> dict[str, Any]:
        """The content of ``pyproject.toml``; empty if there is none."""
        file = self.root / "pyproject.toml"
        return tomllib.loads(file.read_text()) if file.is_file() else {}

    @cached_property
    def modules(self) -> dict[str, Module]:
        """The product's modules by path."""
        paths = [path for path in self.files if path.endswith(".py") and not _is_test(path)]
        texts = {path: self.read(path) for path in paths}
        return {path: Module(path, text, ast.parse(text, path)) for path, text in texts.items()}

    @cached_property
    def test_lines(self) -> int:
        """Lines of Python in test code."""
        return sum(self.read(path).count("\n") for path in self.files if path.endswith(".py") and _is_test(path))

    def read(self, path: str) -> str:
        """Return the text of a file."""
        return (self.root / path).read_text(encoding="utf-8")


def _is_test(path: str) -> bool:
    return TESTS in path.split("/")[:-1] or path.startswith(KIT)


def _paths(root: Path) -> Iterator[str]:
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is not None:
        names = set(listed.split("\0")) - {""}
    else:
        names = {path.relative_to(root).as_posix() for path in root.rglob("*")}
        names = {name for name in names if not any(part.startswith(".") for part in name.split("/")[:-1])}
    return (name for name in names if not (root / name).is_symlink())
