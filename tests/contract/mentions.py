"""What a test is about: the words of its source and of everything of its own module that it uses."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Sequence
from pathlib import Path

from tests.helpers.syntax import parsed

WORD = re.compile(r"--[a-zA-Z][\w-]*|\b[a-zA-Z_]\w*")


def _source(lines: Sequence[bytes], node: ast.stmt | ast.expr) -> str:
    """Return the source of a node; `ast.get_source_segment` would split the whole file for each."""
    first, last = node.lineno - 1, node.end_lineno or node.lineno
    whole = b"".join(lines[first:last])
    return whole[node.col_offset : len(whole) - len(lines[last - 1]) + (node.end_col_offset or 0)].decode()


@functools.cache
def definitions(path: Path) -> dict[str, str]:
    """Return the source of every name that a module defines at its top level."""
    lines = path.read_bytes().splitlines(keepends=True)
    found: dict[str, str] = {}
    for node in parsed(path).body:
        source = _source(lines, node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            decorators = [_source(lines, decorator) for decorator in node.decorator_list]
            found[node.name] = "\n".join([*decorators, source])
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: source for target in targets if isinstance(target, ast.Name)}
    return found


@functools.cache
def words_of(path: Path, name: str) -> frozenset[str]:
    """Return the words of a test and of the constants, helpers and fixtures of its module that it reaches.

    Raises:
        KeyError: when the module has no such test.
    """
    defined = definitions(path)
    reached, waiting, words = {name}, [name], set[str]()
    while waiting:
        new = set(WORD.findall(defined[waiting.pop()]))
        words |= new
        following = (new & defined.keys()) - reached
        reached |= following
        waiting += following
    return frozenset(words)
