"""The steps of a server's start, read from its log and from the compilers that it runs.

SGLang has no hook for its phases, and on CUDA they happen in processes that it spawns, so its log lines are the one place that
knows them all; so it is with vLLM. A line that another version words differently gives no step, and nothing else changes. A log that cannot be read
gives none either.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from groundwork.process import group_programs
from groundwork.start_timeline import Step

LINES: dict[Step, re.Pattern[bytes]] = {
    Step.IMPORTED: re.compile(rb"server_args=[{S]"),
    Step.WEIGHTS: re.compile(rb"Load weight end\. "),
    Step.CACHE: re.compile(rb"Memory pool end\. "),
    Step.PREFILL_GRAPHS: re.compile(rb"Capture target prefill CUDA graph end\. "),
    Step.GRAPHS: re.compile(rb"Capture target (?:decode|verify) [\w ]*graph end\. "),
}
"""The line of SGLang that ends a step; the first one counts."""
COMPILERS = frozenset({"nvcc", "cicc", "ptxas", "cudafe++", "fatbinary", "ninja"})
"""Programs that SGLang, FlashInfer and Triton compile kernels with."""
LOOK_SECONDS = 1.0
"""Between two looks for compilers, because each reads the table of processes."""


class Startup:
    """Reads one start of one server; owned by the engine that waits for it."""

    def __init__(self, log: Path, group: int | None, lines: Mapping[Step, re.Pattern[bytes]] = LINES) -> None:
        """Read from the present end of ``log``.

        Args:
            log: of the server.
            group: the server's process group, None if it compiles nothing.
            lines: those of the server that end a step.
        """
        self._log, self._group, self._lines = log, group, lines
        self._looked_at = float("-inf")
        try:
            self._read = log.stat().st_size
        except OSError:
            self._read = 0
        self._done: set[Step] = set()
        self._compiles = False

    def steps(self) -> Iterator[Step]:
        """Yield the steps since the last call, in order."""
        yield from self._compiling()
        try:
            with open(self._log, "rb") as file:
                file.seek(self._read)
                text = file.read()
        except OSError:  # the start does not depend on its log
            return
        text = text[: text.rfind(b"\n") + 1]
        self._read += len(text)
        for line in text.splitlines():
            for step, pattern in self._lines.items():
                if step not in self._done and pattern.search(line):
                    self._done.add(step)
                    yield step

    def _compiling(self) -> Iterator[Step]:
        """Yield when compilers run, and when none runs any more."""
        now = time.monotonic()
        if self._group is None or now < self._looked_at + LOOK_SECONDS:
            return
        self._looked_at = now
        runs = bool(COMPILERS & group_programs(self._group))
        if runs != self._compiles:
            self._compiles = runs
            yield Step.COMPILING if runs else Step.COMPILED
