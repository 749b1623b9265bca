"""A regular expression that searches in linear time: RE2, which also releases the interpreter lock meanwhile.

Guarantees: the time of a search grows linearly with the text, whatever pattern and text are. RE2 has no look-around;
``\\w``, ``\\d`` and ``\\s`` are ASCII. Immutable.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

RE2: Any = importlib.import_module("re2")  # has no type stubs


class LinearPattern:
    """Searches encoded text; a pattern with a group finds what the group matches."""

    def __init__(
        self,
        source: str,
        *,
        ignore_case: bool = False,
        dot_all: bool = False,
        groups: bool = False,
        by_byte: bool = False,
    ) -> None:
        """Compile a pattern.

        Args:
            source: the pattern, in RE2's syntax.
            ignore_case: as ``re.IGNORECASE``.
            dot_all: as ``re.DOTALL``.
            groups: whether the first group is what is searched for; without, groups capture nothing.
            by_byte: take each byte as a character, instead of UTF-8.

        Raises:
            re2.error: if RE2 cannot run the pattern.
        """
        options = RE2.Options()
        options.log_errors = False
        options.case_sensitive = not ignore_case
        options.dot_nl = dot_all
        options.never_capture = not groups
        if by_byte:
            options.encoding = RE2.Options.Encoding.LATIN1
        self._group = 1 if groups else 0
        self._pattern = RE2.compile(source.encode() if by_byte else source, options)

    def search(self, data: bytes, position: int = 0) -> tuple[int, int] | None:
        """Return (start, end) of the first match at or after ``position``, or None."""
        match = self._pattern.search(data, position)
        return None if match is None else match.span(self._group)

    def every(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of all matches that do not overlap."""
        for match in self._pattern.finditer(data):
            yield match.span(self._group)

    def whole(self, data: bytes) -> bool:
        """Return whether the pattern matches all of ``data``."""
        return self._pattern.fullmatch(data) is not None
