"""Reads the answer of an agent's last message, and compares it with the right one.

Guarantees: only the last message counts, so an answer that a program printed is none. Of several answers the last one counts. A
comparison ends within the limits of a grader worker, whatever the text is, and never runs it.

* ``exact``: the same text, up to case, white space, quotes and a full stop.
* ``numeric``: the same number, up to the tolerance; decimals, fractions such as ``3/4``, and thousands separators.
* ``math``: the same expression, set or interval, by the library math-verify.
"""

from __future__ import annotations

import importlib.util
import re
from fractions import Fraction

from agentrl.tasks.toolcall.draft import Expected, GraderName
from groundwork.exceptions import ConfigError
from slime.rollout.rm_hub.extraction import after_thinking, answer_line, last_boxed
from slime.rollout.rm_hub.workers import GraderTimeout, pool

MAX_CHARACTERS = 500
"""Of an answer; a longer one is wrong."""
MAX_DIGITS = 400
_NUMBER = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:,\d{3})+)?(?:\.\d+)?(?:[eE][+-]?\d{1,3})?", re.ASCII)
_WORD = re.compile(r"answer\s*:|\\f?box(?:ed)?\s*\{", re.IGNORECASE)


def answer_of(message: str) -> str | None:
    """Return the answer of a message: its last ``Answer:`` or ``\\boxed{}``, whichever comes later; None without one."""
    text = after_thinking(message) or message
    words = list(_WORD.finditer(text))
    if not words:
        return None
    boxed, line = last_boxed(text), answer_line(text)
    said_last = words[-1].group().lower().startswith("answer")
    if said_last or (line is not None and boxed is not None and line == boxed):
        return line
    return boxed if boxed is not None else line


async def is_right(answer: str | None, expected: Expected) -> bool:
    """Return whether an answer is the right one."""
    if answer is None or not answer.strip() or len(answer) > MAX_CHARACTERS:
        return False
    if expected.grader == "exact":
        return plain(answer) == plain(expected.text)
    if expected.grader == "numeric":
        return _near(answer, expected)
    try:
        return bool(await pool().grade("equal_answers", answer=answer, labels=[expected.text]))
    except GraderTimeout:
        return False


def plain(text: str) -> str:
    """Return a text without what makes no difference to it."""
    return " ".join(text.strip().strip("$`'\"*").strip().rstrip(".").split()).casefold()


def number_of(text: str) -> Fraction | None:
    """Return the number that a text is, as a whole; None if it is none, or has too many digits."""
    over, slash, under = plain(text).replace(" ", "").partition("/")
    top, bottom = _decimal(over), _decimal(under) if slash else Fraction(1)
    return top / bottom if top is not None and bottom else None


def check_grader(name: GraderName) -> None:
    """Refuse a grader whose library is missing.

    Raises:
        ConfigError: says how to install it.
    """
    if name == "math" and importlib.util.find_spec("math_verify") is None:
        raise ConfigError(
            "the grader math needs math-verify; install it with: pip install 'math-verify[antlr4-13-2]', or take the "
            "grader numeric or exact"
        )


def _near(answer: str, expected: Expected) -> bool:
    result, right = number_of(answer), number_of(expected.text)
    assert right is not None
    return result is not None and abs(result - right) <= Fraction(expected.tolerance) * abs(right)


def _decimal(text: str) -> Fraction | None:
    if not any(letter.isdigit() for letter in text) or len(text) > MAX_DIGITS or _NUMBER.fullmatch(text) is None:
        return None
    return Fraction(text.replace(",", ""))
