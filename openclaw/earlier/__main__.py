"""The process: ``python -m openclaw.earlier DESCRIPTOR LEDGER RUN_DIR``, which only `openclaw.runtime.earlier` starts.

Guarantees: replies are made one after the other, in the order in which they were asked for, at a low priority and on half of the
cores, so that engines and gateway come first. No GPU is touched. It ends when its channel does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from groundwork.machine import usable_cores
from groundwork.process import watch_lifeline
from openclaw.earlier.replies import reply
from openclaw.earlier.weights import Weights
from openclaw.engine.client import TokenChunk
from openclaw.exceptions import VersionRefusedError
from openclaw.gateway.channel import answered_over
from openclaw.gateway.earlier import Wanted
from openclaw.runs.folder import run_at

logger = logging.getLogger(__name__)

NICE = 10


class Answer:
    """One reply: what is made of it in a thread, and read in the event loop."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._chunks: list[TokenChunk] = []
        self._error: VersionRefusedError | None = None
        self._news = asyncio.Event()

    def add(self, chunk: TokenChunk) -> None:
        """Add a part."""
        self._chunks.append(chunk)
        self._news.set()

    def fail(self, error: VersionRefusedError) -> None:
        """End it."""
        self._error = error
        self._news.set()

    def stop(self) -> None:
        """Make no more of it; whoever waits for a part gets an error."""
        self.stopped.set()
        self.fail(VersionRefusedError("this reply was stopped", 500))

    async def next(self) -> list[TokenChunk]:
        """Return the parts that were not read yet, waiting for one; raise the error that ended it after its last part."""
        await self._news.wait()
        chunks, self._chunks = self._chunks, []
        if not chunks and self._error is not None:
            raise self._error
        if self._error is None:
            self._news.clear()
        return chunks


class Answers:
    """All replies under way, by the number that the gateway gave each."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._one = asyncio.Lock()
        self._answers: dict[int, Answer] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, number: int, person: str | None, wanted: Wanted) -> None:
        """Begin a reply, of a person's adapter or (None) of everybody's weights."""
        answer = self._answers[number] = Answer()
        task = asyncio.get_running_loop().create_task(self._make(answer, person, wanted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def next(self, number: int) -> list[TokenChunk]:
        """Return the next parts of a reply, at least one."""
        return await self._answers[number].next()

    def stop(self, number: int) -> None:
        """End a reply, which nobody reads any more."""
        if (answer := self._answers.pop(number, None)) is not None:
            answer.stop()

    async def _make(self, answer: Answer, person: str | None, wanted: Wanted) -> None:
        loop = asyncio.get_running_loop()

        def make() -> None:
            model = self._weights.of(wanted.version, person)
            for chunk in reply(model, wanted, answer.stopped.is_set):
                loop.call_soon_threadsafe(answer.add, chunk)

        try:
            async with self._one:
                if not answer.stopped.is_set():
                    await asyncio.to_thread(make)
        except VersionRefusedError as error:
            answer.fail(error)
        except Exception:
            logger.exception("version %s failed", wanted.version)
            answer.fail(VersionRefusedError(f"version {wanted.version} cannot answer; the server's log says why", 500))


def main() -> None:
    """Run the process."""
    watch_lifeline()
    os.nice(NICE)
    descriptor, ledger, run_dir = sys.argv[1:]
    os.set_inheritable(int(descriptor), False)
    torch.set_num_threads(max(1, usable_cores() // 2))
    disable_progress_bar()
    answers = Answers(Weights(run_at(Path(run_dir), Path(ledger))))
    functions = {"begin": answers.begin, "next": answers.next, "stop": answers.stop}
    asyncio.run(answered_over(int(descriptor), functions))
    os._exit(0)  # a reply that is still made has nobody to read it


if __name__ == "__main__":
    main()
