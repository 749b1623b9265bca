"""Find the answer in a reply.

Guarantee: pure, and linear in the length of any reply.
"""

from __future__ import annotations

import re

THINKING_ENDS = ("</think>", "###Response")
_BRACES = re.compile(r"\\f?box(?:ed)?\s*\{|\\.|[{}]", re.DOTALL)
_BEFORE_ANSWER = " \t\r\n\f\v*"
_ANSWER = re.compile(r"answer\s*:", re.IGNORECASE)


def whole(reply: str) -> str:
    """Return the reply itself."""
    return reply


def last_boxed(reply: str) -> str | None:
    """Return the content of the last closed ``\\boxed{...}`` (or ``\\fbox{...}``), or None."""
    open_braces: list[tuple[int, bool]] = []
    content = None
    for match in _BRACES.finditer(reply):
        word = match.group()
        if word.endswith("{") and word != "\\{":
            open_braces.append((match.end(), len(word) > 1))
        elif word == "}" and open_braces:
            start, boxed = open_braces.pop()
            if boxed:
                content = reply[start : match.start()]
    return content if content is None else content.strip()


def after_thinking(reply: str) -> str | None:
    """Return the text after the last end-of-thinking mark, or None without one."""
    for mark in THINKING_ENDS:
        _, result, rest = reply.rpartition(mark)
        if result:
            return rest
    return None


def boxed_after_thinking(reply: str) -> str | None:
    """Return the last boxed answer after the thinking; None without an end of thinking or a box."""
    rest = after_thinking(reply)
    return None if rest is None else last_boxed(rest)


def answer_line(reply: str) -> str | None:
    """Return the text after the last ``Answer:`` on its line or the next non-empty one, without box or dollar signs.

    None without an ``Answer:``.
    """
    matches = list(_ANSWER.finditer(reply))
    if not matches:
        return None
    line = reply[matches[-1].end() :].lstrip(_BEFORE_ANSWER).split("\n", 1)[0]
    boxed = last_boxed(line)
    return boxed if boxed is not None else line.strip().strip("*").strip().strip("$").strip()
