"""What pytest's short summary (``-rA``) says of each test. Pure.

Guarantees: a test of which a subtest failed has failed, and so has one of which any line says so. The ids are those that pytest printed, also with
spaces, brackets or `` - `` in a parameter; a reason behind them is cut off. A test that passes although it was expected to fail has passed. Whatever a log holds, reading it takes a time that
grows with its length only, because programs under test write into it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import MappingProxyType
from typing import Literal

Status = Literal["PASSED", "FAILED", "SKIPPED", "ERROR", "XFAIL"]
BAD: tuple[Status, ...] = ("FAILED", "ERROR")
WORDS: MappingProxyType[str, Status] = MappingProxyType(
    {
        **{"PASSED": "PASSED", "XPASS": "PASSED", "FAILED": "FAILED", "ERROR": "ERROR", "XFAIL": "XFAIL"},
        **{"SKIPPED": "SKIPPED", "SUBFAILED": "FAILED", "SUBFAIL": "FAILED"},
    }
)
"""Words of the summary; one that begins with SUB is of a subtest, whose test may stand there as passed."""
LINE = re.compile(r"^(PASSED|XPASS|FAILED|ERROR|XFAIL|SKIPPED|SUBFAILED|SUBFAIL)(\S*) (.+?)\r?$", re.MULTILINE)
PLACES = re.compile(r"\[\d+\] ")
"""Skipped tests are counted by place, without ids."""
COLOR = re.compile(r"\x1b\[[0-9;]*m")
BREAK = " - "


def results(summary: str) -> Iterator[tuple[str, Status]]:
    """Yield id and status of each line of a summary."""
    for match in LINE.finditer(COLOR.sub("", summary)):
        word, more, rest = match.groups()
        if word.startswith("SUB"):
            rest = _of_subtest(f"{more} {rest}".lstrip())
        elif more or (word == "SKIPPED" and PLACES.match(rest)):
            continue
        yield (rest if word == "PASSED" else id_of(rest)), WORDS[word]


def id_of(text: str) -> str:
    """Return the id that a line's rest begins with; the reason behind it is cut off, not a `` - `` in its brackets."""
    bracket = text.find("[")
    at = text.find(BREAK)
    while at >= 0:
        if not 0 <= bracket < at or text[at - 1] == "]":
            return text[:at]
        at = text.find(BREAK, at + 1)
    return text


def _of_subtest(text: str) -> str:
    """Return what follows the message and the parameters of a subtest: ``a.py::T::b - x`` of ``[m] (i=1) a.py::T::b - x``."""
    at = 0
    for word in text.split(" "):
        if "::" in word and (at == 0 or text[at - 2] in ")]"):
            return text[at:]
        at += len(word) + 1
    return text
