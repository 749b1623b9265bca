"""Counters of lines, words, rules and names that need no import resolution.

A word is what stands between blanks, as ``wc -w`` counts. Every counter looks at the product only, unless it says else.
"""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

from benchmarks.house_parts.tree import Module, Tree

LAUNCH_FOLDERS = {"args", "arguments", "config", "launch", "recipes", "server"}
"""Packages of launch and configuration code, wherever they are."""
LAUNCH_NAMES = re.compile(r"((\w+_)?(launch|recipe|variables)|\w+_config|recipes)\.py")
"""Modules of launch and configuration code outside these packages."""
NOT_LAUNCH = {"benchmarks", "extensions", "lab", "openclaw-test"}
"""Top folders whose launch code starts no run of a user's."""
CONFIG_ERRORS = ("ConfigError", "ConfigurationError")
GENERATED_PAGES = "instructions/reference/"


def is_launch_code(path: str) -> bool:
    """Return whether a module decides or checks what a person configured, or starts a run from it."""
    *folders, name = path.split("/")
    if folders[:1] and folders[0] in NOT_LAUNCH:
        return False
    return bool(LAUNCH_FOLDERS & set(folders)) or LAUNCH_NAMES.fullmatch(name) is not None


def longest_module(modules: Iterable[Module]) -> Module:
    """Return the module with the most lines."""
    return max(modules, key=lambda module: module.lines)


def median_lines(modules: Iterable[Module]) -> float:
    """Return the median length of a module, ``__init__.py`` files included."""
    return statistics.median(module.lines for module in modules)


def contract_exceptions(project: dict[str, Any]) -> int:
    """Return the number of entries in all ``ignore_imports`` of the import contracts; comments do not count."""
    contracts = project.get("tool", {}).get("importlinter", {}).get("contracts", [])
    return sum(len(contract.get("ignore_imports", [])) for contract in contracts)


def definitions(modules: Iterable[Module], names: Iterable[str]) -> list[str]:
    """Return, as ``path:line``, where a class or type of one of ``names`` is defined at the top of a module.

    A definition is a class statement or an assignment of an expression, ``Message = dict[str, Any]``. Another name for a
    definition elsewhere is none: ``Message = messages.Message``, and neither is an import.
    """
    wanted = set(names)
    return [f"{m.path}:{node.lineno}" for m in modules for node in m.tree.body if _defined(node) in wanted]


def pages(tree: Tree) -> list[str]:
    """Return the hand-written pages of ``instructions/``: Markdown, without the generated reference."""
    return [
        path
        for path in tree.files
        if PurePosixPath(path).suffix == ".md"
        and path.startswith("instructions/")
        and not path.startswith(GENERATED_PAGES)
    ]


def words(tree: Tree, paths: Iterable[str]) -> int:
    """Return the number of words in files."""
    return sum(len(tree.read(path).split()) for path in paths)


def _defined(node: ast.stmt) -> str | None:
    if isinstance(node, ast.ClassDef):
        return node.name
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, value = node.targets[0], node.value
    elif isinstance(node, ast.AnnAssign):
        target, value = node.target, node.value
    else:
        return None
    is_other_name = value is None or isinstance(value, ast.Name | ast.Attribute)
    return target.id if isinstance(target, ast.Name) and not is_other_name else None
