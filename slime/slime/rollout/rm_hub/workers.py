"""Worker processes that grade, so that code which may hang, crash or exhaust memory runs outside this process.

Guarantees: :meth:`GraderPool.grade` answers within its limit or raises :class:`GraderTimeout`. A worker that hangs or
dies is killed and replaced without affecting other grades. A worker cannot outlive this process: a grade ends at its
own alarm, and the closed connection ends the worker. The pool belongs to the process (:func:`pool`), not to an event
loop.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from typing import Any

from slime.exceptions import SlimeError

GRADE_SECONDS = 5.0
START_SECONDS = 120.0
MEMORY_BYTES = 4 * 2**30
MAX_WORKERS = 8
MODULE = "slime.rollout.rm_hub.worker_main"
ANSWERS = "slime.rollout.rm_hub.equal_answers"


class GraderTimeout(SlimeError, TimeoutError):
    """A grade exceeded its time or a worker's memory limit."""


class _Worker:
    """One process and its connection; used by one thread."""

    def __init__(self, functions: str, seconds: float) -> None:
        self._connection, theirs = Pipe()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        limits = (str(seconds), str(MEMORY_BYTES))
        command = [sys.executable, "-m", MODULE, str(theirs.fileno()), *limits, functions]
        try:
            self._process = subprocess.Popen(
                command, env=environment, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, start_new_session=True
            )
        finally:
            theirs.close()
        if not self._connection.poll(START_SECONDS) or self._receive() != "ready":
            self.kill()
            raise RuntimeError(
                f"a grader process did not start within {START_SECONDS:.0f} s; to see why, run: {' '.join(command[:3])}"
            )

    def call(self, name: str, arguments: dict[str, Any], seconds: float) -> Any:
        try:
            self._connection.send_bytes(json.dumps([name, arguments]).encode())
            if not self._connection.poll(seconds):
                raise GraderTimeout(f"grader {name} took longer than {seconds:g} s")
            kind, value = self._receive()
        except (EOFError, ConnectionError) as error:
            raise GraderTimeout(f"grader {name} exceeded its limit of time or memory") from error
        if kind == "error":
            raise RuntimeError(f"grader {name} failed: {value}")
        return value

    def _receive(self) -> Any:
        return json.loads(self._connection.recv_bytes())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._connection.close()


class GraderPool:
    """Threads that own one worker each; further calls wait in a queue."""

    def __init__(self, workers: int, seconds: float = GRADE_SECONDS, functions: str = ANSWERS) -> None:
        """Prepare; a worker starts with its first call.

        Args:
            workers: processes.
            seconds: time limit of a call.
            functions: module whose functions are called.
        """
        self._seconds, self._functions = seconds, functions
        self._workers: dict[int, _Worker] = {}
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="grader")

    def close(self) -> None:
        """Finish running grades, end the workers and close the pool."""
        self._executor.shutdown()
        while self._workers:
            self._workers.popitem()[1].kill()

    async def grade(self, name: str, **arguments: Any) -> Any:
        """Return the result of function ``name`` of the pool's module for ``arguments`` (plain data).

        Raises:
            GraderTimeout: the grade takes too long, or its worker died.
        """
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._grade, name, arguments)

    def grade_blocking(self, name: str, **arguments: Any) -> Any:
        """Do the same as `grade` for synchronous callers."""
        return self._executor.submit(self._grade, name, arguments).result()

    def _grade(self, name: str, arguments: dict[str, Any]) -> Any:
        thread = threading.get_ident()
        if thread not in self._workers:
            self._workers[thread] = _Worker(self._functions, max(self._seconds, GRADE_SECONDS))
        try:
            return self._workers[thread].call(name, arguments, self._seconds)
        except (GraderTimeout, OSError):
            self._workers.pop(thread).kill()
            raise


@functools.cache
def pool() -> GraderPool:
    """Return this process's pool, started with the first grade."""
    return GraderPool(max(1, min(MAX_WORKERS, (os.cpu_count() or 2) // 2)))
