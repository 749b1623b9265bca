"""Time and memory of a step in one of several alternating processes: the measured side.

A request is a line of JSON on standard input, ``{"batch": name, "weigh": bool}``; the answer is a line on what was standard
output when the process began. Everything else that prints goes to standard error. A step runs between two requests, so
processes that are compared take their steps in turn and share the machine's good and bad moments.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from benchmarks.memory import give_back_freed_blocks, peak, reset_peak, totals


class Meter:
    """Owner of the answers' stream."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self._answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._start = self._cpu_start = 0.0
        self._bytes: int | None = None

    def wait(self) -> str | None:
        """Return the name of the next batch, None at the end."""
        line = sys.stdin.readline()
        if not line:
            return None
        request = json.loads(line)
        if request["weigh"]:
            give_back_freed_blocks(self.device)
        self._bytes = reset_peak(self.device) if request["weigh"] else None
        return request["batch"]

    def begin(self) -> None:
        """The step starts now."""
        self._wait_for_device()
        self._start, self._cpu_start = time.perf_counter(), time.process_time()

    def end(self, beside: dict[str, float] | None = None) -> None:
        """Answer for the step that is over: its seconds, by the wall and of this process on the CPU, or its memory with ``beside``.

        Memory is the peak above what was in use before the step and, on CUDA, the allocator's totals with what was.
        """
        self._wait_for_device()
        took = {"seconds": time.perf_counter() - self._start, "cpu_seconds": time.process_time() - self._cpu_start}
        if self._bytes is not None:
            took = {"peak_bytes": peak(self.device) - self._bytes, **totals(self.device), **(beside or {})}
        self.answer(took)

    def answer(self, value: dict[str, Any]) -> None:
        """Write ``value`` as one line."""
        self._answers.write(json.dumps(value) + "\n")
        self._answers.flush()

    def _wait_for_device(self) -> None:
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.device)
