"""The real SGLang engine on the CPU with a tiny model, in the shape that `tests.security.server` expects."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slime.backends.sglang_utils.engine import SGLangEngine

CHECK_SECONDS = 1.0


class RealEngine:
    """A running engine; a thread starts it again when it died, as a run does."""

    def __init__(self, engine: SGLangEngine, context_length: int) -> None:
        self._engine = engine
        self._first = engine.starts()
        self._stopping = threading.Event()
        self.context_length = context_length
        self.url = engine.url()
        self._thread = threading.Thread(target=self._keep_alive, name="engine keeper", daemon=True)
        self._thread.start()

    def _keep_alive(self) -> None:
        while not self._stopping.wait(CHECK_SECONDS):
            self._engine.restart_if_dead()

    def deaths(self) -> int:
        """Return how often it died."""
        return self._engine.starts() - self._first + (not self._engine.alive())

    def stop(self) -> None:
        """Let it die for good; the block that started it ends it."""
        self._stopping.set()
        self._thread.join()


@contextmanager
def real_engine(folder: Path) -> Iterator[tuple[RealEngine, Path]]:
    """Start an engine with a random tiny model for the block; yield it and the folder of its tokenizer."""
    from lab.testkit.live_engine import CONTEXT_LENGTH, engine_arguments, live_engine
    from lab.testkit.tiny_random import build

    model = build(folder / "model")
    with live_engine(engine_arguments(model, folder / "engine")) as engine:
        running = RealEngine(engine, CONTEXT_LENGTH)
        try:
            yield running, model
        finally:
            running.stop()
