"""Extract the commands and programs of the Markdown pages, each with its line.

A command of a code block has its comment removed and its continued lines joined; a here-document, an open quote and a
whole script (a block that starts with ``#!``) are one command. A code span of the text counts when it starts with a program.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOT_FOLLOWED = ("log/", "instructions/changes_for_users.md", "README_zh.md", "instructions/zh/")
"""What was tried, and what changed: their commands are those of their day. Chinese pages have those of their twins."""
SHELL = ("bash", "sh", "shell", "console")
STATE = re.compile(r"(cd|source|export|umask)\b")
ASSIGNMENTS = r"""(?:[A-Z][A-Z0-9_]*=(?:"[^"]*"|'[^']*'|[^\s"'])*\s+)*"""
PROGRAM = re.compile(
    ASSIGNMENTS
    + r"(?:(?:\S+/)?(?:python3?|openclaw-rl)|bash|curl|docker|git|npm|npx|openclaw|pip|ray|ruff|\S+\.sh)\s+\S"
)
_FENCE = re.compile(r"^( *)```+ *(\S*).*$")
_SPAN = re.compile(r"(?<!`)`((?:[^`\n]|\n(?!\s*\n))+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A fenced block: the line of its first text, its language, its text."""

    page: str
    line: int
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """One command as a shell reads it; ``before`` are the block's earlier lines that change the shell's state."""

    page: str
    line: int
    text: str
    before: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where it stands, as editors and compilers write it."""
        return f"{self.page}:{self.line}"

    @property
    def program(self) -> str:
        """The command without the variables it sets and the folder of the environment."""
        return re.sub(r"^" + ASSIGNMENTS, "", self.text).removeprefix(".venv/bin/")

    @property
    def is_fragment(self) -> bool:
        """Whether it is a part of a command, or a file to write."""
        return self.text.startswith(("#!", "--"))

    @property
    def first_line(self) -> str:
        """Its first line, marked where there are more."""
        first, *rest = self.text.splitlines()
        return first + " ..." * bool(rest)


def pages() -> list[str]:
    """Return every page that git tracks, or is about to."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return sorted(name for name in set(names) if not name.startswith(NOT_FOLLOWED) and (ROOT / name).is_file())


def blocks_of(page: str, text: str) -> tuple[list[Block], str]:
    """Return the fenced blocks of a page, and the page with them blanked so that line numbers stay."""
    found: list[Block] = []
    prose: list[str] = []
    opened: tuple[int, str, int] | None = None
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and opened is None:
            opened, lines = (number + 1, fence[2], len(fence[1])), []
        elif fence and opened is not None:
            found.append(Block(page, opened[0], opened[1], "\n".join(lines)))
            opened = None
        elif opened is not None:
            lines.append(line.removeprefix(" " * opened[2]))
        prose.append("" if fence or opened is not None else line)
    return found, "\n".join(prose)


def without_comment(line: str, quote: str = "") -> tuple[str, str]:
    """Return a line without its comment, and the quote that it leaves open; ``quote`` is the one open before it."""
    position = 0
    while position < len(line):
        mark = line[position]
        if mark == "\\" and quote != "'":
            position += 1
        elif quote:
            quote = "" if mark == quote else quote
        elif mark in "'\"":
            quote = mark
        elif mark == "#" and (position == 0 or line[position - 1].isspace()):
            return line[:position].rstrip(), ""
        position += 1
    return line.rstrip(), quote


def commands_of_block(block: Block) -> Iterator[Command]:
    """Yield the commands of a shell block; of a ``console`` block only what follows the prompt ``$``."""
    if block.text.startswith("#!"):
        yield Command(block.page, block.line, block.text)
        return
    state: tuple[str, ...] = ()
    parts: list[str] = []
    start, quote, end = 0, "", ""
    for number, line in enumerate(block.text.splitlines(), block.line):
        if block.language == "console" and not parts:
            if not line.startswith("$ "):
                continue
            line = line.removeprefix("$ ")
        start = start if parts else number
        if end:
            parts.append(line)
            end = "" if line.strip() == end else end
        else:
            part, quote = without_comment(line, quote)
            if not part and not parts:
                continue
            parts.append(part)
            here = re.search(r"<<-?\s*['\"]?(\w+)", part)
            end = here[1] if here and not quote else ""
        if end or quote or parts[-1].endswith("\\"):
            continue
        text, parts = "\n".join(parts), []
        if "<<" not in text:
            text = re.sub(r"\\\n\s*", "", text)
        yield Command(block.page, start, text, state)
        if STATE.match(text):
            state = (*state, text)
    if parts:
        raise ValueError(f"{block.page}:{start}: the command does not end in its block: {parts[0]}")


def commands_of_text(page: str, prose: str) -> Iterator[Command]:
    """Yield the commands among the code spans of a page without its blocks."""
    for span in _SPAN.finditer(prose):
        text = re.sub(r"\s*\n\s*", " ", span[1]).replace("\\|", "|")
        if PROGRAM.match(text):
            yield Command(page, prose.count("\n", 0, span.start()) + 1, text)


def read_page(page: str) -> tuple[list[Block], list[Command]]:
    """Return a page's blocks and its commands in reading order."""
    blocks, prose = blocks_of(page, (ROOT / page).read_text())
    commands = [each for block in blocks if block.language in SHELL for each in commands_of_block(block)]
    commands += commands_of_text(page, prose)
    return blocks, sorted(commands, key=lambda each: each.line)


def all_commands() -> list[Command]:
    """Return the commands of every page."""
    return [command for page in pages() for command in read_page(page)[1]]
