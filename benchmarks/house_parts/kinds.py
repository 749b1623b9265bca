"""What the lines of the product are: code, data, explanation, imports.

Each line has one kind, the first of these that fits:

* ``docs``: a string that stands alone, such as a docstring; a line that is only a comment.
* ``blank``.
* ``imports``: an ``import`` statement, and a block under ``TYPE_CHECKING``.
* ``data``: the declaration of a flag, a variable or a bound; an assignment at the top of a module or of a class.
* ``code``: everything else.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

from benchmarks.house_parts.sizes import is_launch_code
from benchmarks.house_parts.tree import Module

KINDS = ("code", "data", "docs", "imports", "blank")
DECLARES = {"Option", "variable", "add_argument", "add", "Bound", "Fixed"}
"""Functions and classes whose calls declare a flag, a variable or a bound."""
LAUNCH = "launch and configuration"
Spans = Iterator[tuple[str, ast.stmt | ast.expr]]


def kinds_of(module: Module) -> Counter[str]:
    """Return the number of lines of each kind."""
    lines = module.text.splitlines()
    kinds = ["" if line.strip() else "blank" for line in lines]
    for kind, node in [*_docs(module.tree), *_imports(module.tree), *_data(module.tree)]:
        for place in range(node.lineno - 1, node.end_lineno or node.lineno):
            if not kinds[place] or (kind == "docs" and kinds[place] == "blank"):
                kinds[place] = kind
    return Counter(
        kind or ("docs" if line.lstrip().startswith("#") else "code") for kind, line in zip(kinds, lines, strict=True)
    )


def by_part(modules: Iterable[Module], depth: int) -> dict[str, Counter[str]]:
    """Return the kinds of lines of each part, the longest first: launch code, and all other by its first folders.

    Args:
        modules: of the product.
        depth: how many folders make a part.
    """
    parts: dict[str, Counter[str]] = {}
    for module in modules:
        part = LAUNCH if is_launch_code(module.path) else "/".join(module.folder.split("/")[:depth])
        parts.setdefault(part, Counter()).update(kinds_of(module) | Counter(modules=1))
    return dict(sorted(parts.items(), key=lambda item: -sum(item[1][kind] for kind in KINDS)))


def table(parts: dict[str, Counter[str]]) -> str:
    """Return the parts as text, with their sum in the last line."""
    rows = {**parts, "all": sum(parts.values(), Counter[str]())}
    width = max(map(len, rows))
    head = f"{'':{width}}" + "".join(f"{name:>9}" for name in ("modules", "lines", *KINDS))
    lines = [
        f"{part:{width}}{found['modules']:9,}{sum(found[kind] for kind in KINDS):9,}"
        + "".join(f"{found[kind]:9,}" for kind in KINDS)
        for part, found in rows.items()
    ]
    return "\n".join([head, *lines])


def _docs(tree: ast.Module) -> Spans:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield "docs", node


def _imports(tree: ast.Module) -> Spans:
    for node in ast.walk(tree):
        of_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if isinstance(node, ast.Import | ast.ImportFrom) or of_types:
            yield "imports", node


def _data(tree: ast.Module) -> Spans:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in DECLARES:
            yield "data", node
        elif isinstance(node, ast.Module | ast.ClassDef):
            yield from (("data", part) for part in node.body if isinstance(part, ast.Assign | ast.AnnAssign))
