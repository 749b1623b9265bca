"""Diffs as text: which files they touch, and how two states of files become one. For data of the operator, not of an agent."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

HEAD = re.compile(r"^diff --git a/(.+?) b/(.+?)$", re.MULTILINE)


def paths_of(diff: str) -> tuple[str, ...]:
    """Return the paths that a git diff touches, old and new ones, each once."""
    return tuple(dict.fromkeys(path for found in HEAD.finditer(diff) for path in found.groups()))


def diff_of(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the git diff between two states of text files."""
    parts: list[str] = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        parts.append(f"diff --git a/{path} b/{path}\n")
        if old is None:
            parts.append("new file mode 100644\n")
        if new is None:
            parts.append("deleted file mode 100644\n")
        sides = (f"a/{path}" if old is not None else "/dev/null", f"b/{path}" if new is not None else "/dev/null")
        first, second = ((text or "").splitlines(keepends=True) for text in (old, new))
        for line in difflib.unified_diff(first, second, *sides):
            parts.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(parts)
