"""One method on every engine at once.

Guarantees: the first engine that fails ends the wait, also while the others wait for it in a collective operation; who failed
is known. Holds the calls under way, nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any


class EngineCalls:
    """The calls of one method; ``engines`` are actor handles."""

    def __init__(self, engines: Sequence[Any], method: str, *arguments: Any, **keywords: Any) -> None:
        """Send the calls."""
        self.method = method
        self._engines = list(engines)
        self._futures: list[Future[Any]] = [
            getattr(engine, method).remote(*arguments, **keywords).future() for engine in engines
        ]

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
        """Return what the engines answered, in order; raise the first failure at once."""
        done, _ = wait(self._futures, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        return [future.result() for future in self._futures]

    def check_none_ended(self) -> None:
        """Raise the first failure, or RuntimeError when an engine has answered: for calls that must last for now."""
        for index, future in enumerate(self._futures):
            if future.done():
                future.result()
                raise RuntimeError(f"policy engine {index} ended {self.method} before it had everything")

    def error(self, position: int) -> BaseException | None:
        """Return with what the call on an engine has failed by now."""
        future = self._futures[position]
        return future.exception() if future.done() else None

    def failed(self) -> list[int]:
        """Return the positions of the engines whose call has failed by now."""
        return [index for index, future in enumerate(self._futures) if future.done() and future.exception() is not None]

    def unanswered(self, seconds: float) -> list[int]:
        """Wait up to ``seconds`` and return the positions of the engines that failed or did not answer."""
        done, _ = wait(self._futures, timeout=seconds)
        return [
            index for index, future in enumerate(self._futures) if future not in done or future.exception() is not None
        ]
