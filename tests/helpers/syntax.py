"""Syntax trees of source files, for tests that read the whole tree."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def parsed(path: Path) -> ast.Module:
    """Return a file's tree, which nobody may change; each file is parsed once per process.

    The collector is off meanwhile and never visits the trees afterwards: with it a tree of this size takes five times as long.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text(), str(path))
    finally:
        if was_on:
            gc.freeze()
            gc.enable()
