"""Diffs as text: which files they touch, and how two states of files become one. For data of the operator, not of an agent."""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Mapping

HEAD = re.compile(r"^diff --git a/(.+?) b/(.+?)$", re.MULTILINE)
HUNK = re.compile(r"^@@ -(\d+(?:,(\d+))?) \+(\d+(?:,(\d+))?) @@(.*)$")
INDEX = re.compile(r"^index (\w+)\.\.(\w+)(.*)$")
SWAPPED = {"+": "-", "-": "+"}
WORDS = {
    "new file mode": "deleted file mode",
    "deleted file mode": "new file mode",
    "rename from": "rename to",
    "rename to": "rename from",
    "old mode": "new mode",
    "new mode": "old mode",
}


def paths_of(diff: str) -> tuple[str, ...]:
    """Return the paths that a git diff touches, old and new ones, each once."""
    return tuple(dict.fromkeys(path for match in HEAD.finditer(diff) for path in match.groups()))


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
        first, second = (list(io.StringIO(text or "", newline="\n")) for text in (old, new))
        for line in difflib.unified_diff(first, second, *sides):
            parts.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(parts)


def reversed_diff(diff: str) -> str:
    """Return the git diff that takes another one back."""
    lines: list[str] = []
    old_name, old, new = "", 0, 0
    for line in diff.split("\n"):
        kind = line[:1]
        if kind == "\\":
            lines.append(line)
        elif old > 0 or new > 0:
            old, new = old - (kind != "+"), new - (kind != "-")
            lines.append(SWAPPED.get(kind, kind) + line[1:])
        elif match := HUNK.match(line):
            old, new = int(match[2] or 1), int(match[4] or 1)
            lines.append(f"@@ -{match[3]} +{match[1]} @@{match[5]}")
        elif match := HEAD.match(line):
            lines.append(f"diff --git a/{match[2]} b/{match[1]}")
        elif line.startswith("--- "):
            old_name = line[4:]
        elif line.startswith("+++ "):
            lines += [f"--- {_other_side(line[4:])}", f"+++ {_other_side(old_name)}"]
        elif match := INDEX.match(line):
            lines.append(f"index {match[2]}..{match[1]}{match[3]}")
        else:
            word = next((word for word in WORDS if line.startswith(word)), "")
            lines.append(WORDS.get(word, "") + line.removeprefix(word))
    return "\n".join(lines)


def _other_side(name: str) -> str:
    side = {"a/": "b/", "b/": "a/"}.get(name[:2])
    return name if side is None else side + name[2:]
