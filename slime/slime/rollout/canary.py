"""One engine that has the candidate before all others, as a ``--before-push-path`` plugin sees it.

Guarantees: until the engine loses the candidate, it answers with it at ``url`` and no router sends it requests, unless all
other engines are dead. A plugin that waits learns at once when that ends: another engine or this one restarted, so all have the
weights that serve, or the trainer died. Imports neither torch nor Ray.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from slime.exceptions import TrainerError


class CanaryEndedError(TrainerError):
    """The engine has the candidate no longer.

    Attributes:
        died: whether this engine itself died.
    """

    def __init__(self, why: str, *, died: bool = False) -> None:
        super().__init__(why)
        self.died = died


class Canary:
    """The engine and its candidate. Thread-safe."""

    def __init__(self, url: str, lives: Callable[[], bool] = lambda: True) -> None:
        """``url``: of the engine; ``lives``: returns whether it is still the process that got the candidate."""
        self.url = url
        self.lives = lives
        self._ended = threading.Event()
        self._error = CanaryEndedError("")

    def wait(self, seconds: float) -> None:
        """Wait.

        Raises:
            CanaryEndedError: the engine loses the candidate meanwhile, or had lost it before.
        """
        if self._ended.wait(seconds):
            raise self._error

    def end(self, why: str, *, died: bool = False) -> None:
        """Let nobody wait any longer; the first reason stays."""
        if not self._ended.is_set():
            self._error = CanaryEndedError(why, died=died)
            self._ended.set()

    @property
    def ended(self) -> bool:
        """Whether the engine has lost the candidate."""
        return self._ended.is_set()
