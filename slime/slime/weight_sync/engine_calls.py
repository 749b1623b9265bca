"""Call one method on every engine at once.

Guarantees: the first failing engine ends the wait, even while others wait for it in a collective. An engine whose
process has ended counts as failed although its call stays open. The failed engines are known. Holds only the running
calls.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any

from slime.exceptions import EngineError

LOOK_SECONDS = 5.0
"""Seconds that :meth:`EngineCalls.finish` waits before it checks that the engines' processes still run."""
BLAME_SECONDS = 5.0
"""Seconds for an engine's call to fail after the operation beside it failed, so that the engine is identified."""


class EngineCalls:
    """The calls of one method; ``engines`` are actor handles."""

    def __init__(self, engines: Sequence[Any], method: str, *arguments: Any, **keywords: Any) -> None:
        """Send the calls."""
        self.method = method
        self._engines = list(engines)
        self._futures: list[Future[Any]] = [
            getattr(engine, method).remote(*arguments, **keywords).future() for engine in engines
        ]
        self._lost: set[int] = set()

    @classmethod
    def each(cls, engines: Sequence[Any], method: str, arguments: Sequence[tuple[Any, ...]]) -> EngineCalls:
        """Send one call to each engine, with its own arguments."""
        calls = cls([], method)
        calls._engines = list(engines)
        calls._futures = [
            getattr(engine, method).remote(*own).future() for engine, own in zip(engines, arguments, strict=True)
        ]
        return calls

    def values(self) -> list[Any]:
        """Return the engines' answers, in order; raise the first failure at once."""
        done, _ = wait(self._futures, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        return [future.result() for future in self._futures]

    def finish(self, seconds: float, beside: Future[Any] | None = None) -> None:
        """Wait for all calls and for ``beside``, an operation with the engines; raise the first failure at once.

        Raises:
            EngineError: an engine's process ended, or engines did not answer for ``seconds``; they count as failed.
        """
        waiting: set[Future[Any]] = {*self._futures, *([beside] if beside is not None else [])}
        deadline = time.monotonic() + seconds
        while waiting:
            left = deadline - time.monotonic()
            done, waiting = wait(waiting, timeout=max(0.0, min(LOOK_SECONDS, left)), return_when=FIRST_EXCEPTION)
            if beside in done and beside is not None and beside.exception() is not None:
                wait(self._futures, timeout=BLAME_SECONDS, return_when=FIRST_EXCEPTION)
                self._raise_failure()
            for future in done:
                future.result()
            if waiting and left <= 0:
                self._lost.update(self._open())
                names = ", ".join(map(str, sorted(self._lost))) or "none"
                raise EngineError(
                    f"{self.method} was not done within {seconds:.0f} s; policy engines without an answer: {names}. If the "
                    "network needs longer for one bucket, raise --distributed-timeout-minutes or lower "
                    "--update-weight-buffer-size"
                )
            if waiting:
                self._look()

    def _open(self) -> list[int]:
        return [index for index, future in enumerate(self._futures) if not future.done()]

    def _raise_failure(self) -> None:
        """Raise the first engine's failure, if an engine failed or ended."""
        for future in self._futures:
            if future.done():
                future.result()
        self._look()

    def _look(self) -> None:
        """Raise EngineError if an engine's process ended before it answered."""
        positions = self._open()
        looks = EngineCalls([self._engines[index] for index in positions], "has_ended")
        unanswered = looks.unanswered(LOOK_SECONDS)
        for place, index in enumerate(positions):
            if place not in unanswered and looks._futures[place].result() is True and not self._futures[index].done():
                self._lost.add(index)
                raise EngineError(f"the process of policy engine {index} ended in {self.method}")

    def check_none_ended(self) -> None:
        """Raise the first failure, or RuntimeError if an engine answered; for calls that must still be running."""
        for index, future in enumerate(self._futures):
            if future.done():
                future.result()
                raise RuntimeError(f"policy engine {index} ended {self.method} before it had everything")

    def error(self, position: int) -> BaseException | None:
        """Return the exception of an engine's call so far, or None."""
        future = self._futures[position]
        return future.exception() if future.done() else None

    def failed(self) -> list[int]:
        """Return the positions of engines whose call has failed or whose process has ended."""
        failed = {
            index for index, future in enumerate(self._futures) if future.done() and future.exception() is not None
        }
        return sorted(failed | self._lost)

    def unanswered(self, seconds: float) -> list[int]:
        """Wait up to ``seconds`` and return the positions of the engines that failed or did not answer."""
        done, _ = wait(self._futures, timeout=seconds)
        return [
            index for index, future in enumerate(self._futures) if future not in done or future.exception() is not None
        ]

    def still_open(self, seconds: float) -> list[int]:
        """Wait up to ``seconds`` and return the positions of engines that neither answered nor failed."""
        wait(self._futures, timeout=seconds)
        return self._open()
