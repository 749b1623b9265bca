"""Finds every reason in the code for which a turn, a sample or an episode is not trained."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.helpers.syntax import parsed


def reasons_of(tree: ast.Module) -> Iterator[str]:
    """Yield the reasons that a module gives: ``reason="x"``, ``XYZ = "x"`` given as one, the keys of ``checks`` and ``reasons``."""
    constants = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        given: list[ast.AST | None] = []
        if isinstance(node, ast.keyword) and node.arg == "reason":
            given = list(ast.walk(node.value))
        elif (
            isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and isinstance(node.targets[0], ast.Name)
        ):
            given = list(node.value.keys) if node.targets[0].id in ("checks", "reasons") else []
        for each in given:
            value = constants.get(each.id) if isinstance(each, ast.Name) else getattr(each, "value", None)
            if isinstance(value, str) and value not in ("main", "reason"):  # `turn.kind == "main"`, `row["reason"]`
                yield value


MAY_GIVE = re.compile("[Rr]eason|checks|Why")


@cache
def modules_with_reasons(repository: Path) -> list[ast.Module]:
    """Return every module that may give a reason; one without these words gives none."""
    files = [*repository.glob("openclaw/**/*.py"), *repository.glob("openclaw-*/openclaw_*_method.py")]
    return [parsed(path) for path in files if MAY_GIVE.search(path.read_text())]


def stated_reasons(repository: Path) -> set[str]:
    """Return the reasons that `reasons_of` finds."""
    return {reason for tree in modules_with_reasons(repository) for reason in reasons_of(tree)}


def explained_constants(tree: ast.Module) -> Iterator[str]:
    """Yield text constants of a module whose docstring begins with ``Reason`` or ``Why``: each by itself, or several together.

    A docstring explains the constants that stand right above it.
    """
    above: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Assign):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            texts = [
                value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)
            ]
            above = [*above, *texts] if texts else []
            continue
        text = node.value.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else ""
        if isinstance(text, str) and text.startswith(("Reason", "Why")):
            yield from above if text.startswith("Reasons") else above[-1:]
        above = []


def explained_reasons(repository: Path) -> set[str]:
    """Return the reasons that `explained_constants` finds."""
    return {reason for tree in modules_with_reasons(repository) for reason in explained_constants(tree)}
