"""Reads large request bodies in a worker process, because reading holds the interpreter: a second for 30 MB.

The worker reads a body in its dialect and returns the question without what this server does not read: a few hundred
kilobytes at most, which the runtime then reads by itself. Small bodies never come here.

Guarantees: bodies that wait hold at most `LARGE_BODIES` bytes. The worker starts at the first large body. A worker that
dies under a body gets the body once more, then the body is refused. A worker that has grown ends after its answer, and
ends with this process. It runs this module as a program, with pipes: a process pool would import the whole runtime, and
would outlive it. `LargeBodies` owns the worker; used from one event loop.

Wire format, both ways: 8 bytes of length, then the contents. To the worker: the context length in 8 bytes, one byte for the
dialect, then the body.
Back: one byte (`GROWN` if the worker now ends), one byte (`SLIM` or `REFUSED`), then the question (`slim`) or the error's
fields.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import orjson

from openclaw.config.bounds import LARGE_BODIES
from openclaw.gateway.dialects import READ, Dialect
from openclaw.gateway.dialects.dialect import slim
from openclaw.gateway.errors import ApiError, bad_request

logger = logging.getLogger(__name__)

LENGTH_BYTES = 8
STAYS, GROWN = b"\0", b"\1"
SLIM, REFUSED = b"\0", b"\1"
MAX_RESIDENT_KB = 256 << 10
MAX_MEMORY_BYTES = 8 << 30
PIECE_BYTES = 1 << 20
ATTEMPTS = 2
END_SECONDS = 5.0


class LargeBodies:
    """The worker process and the bodies that wait for it."""

    def __init__(self, context_length: int) -> None:
        """Prepare for requests to a model of ``context_length`` tokens; starts nothing."""
        self._context_length = context_length
        self._worker: asyncio.subprocess.Process | None = None
        self._free = asyncio.Lock()
        self._waiting_bytes = 0

    async def slim(self, body: bytes, dialect: Dialect) -> bytes:
        """Return the question of a body for `unslim`.

        Raises:
            ApiError: what `Dialect.read` raises; 503 if too many large bodies wait.
        """
        if self._waiting_bytes and self._waiting_bytes + len(body) > LARGE_BODIES.most:
            raise ApiError(
                503,
                "too many large requests wait to be read; send the request again in 1 s",
                code="server_busy",
                limit=LARGE_BODIES.name,
            )
        self._waiting_bytes += len(body)
        try:
            async with self._free:
                for _ in range(ATTEMPTS):
                    answer = await self._ask(bytes([READ.index(dialect)]) + body)
                    if answer is not None:
                        break
                else:
                    raise bad_request("the body cannot be read; send less", code="invalid_json")
        finally:
            self._waiting_bytes -= len(body)
            give_back_memory()
        if answer[:1] == REFUSED:
            raise ApiError(**orjson.loads(answer[1:]))
        return answer[1:]

    async def _ask(self, body: bytes) -> bytes | None:
        """Return the worker's answer, or None if it died."""
        worker = self._worker
        if worker is None or worker.returncode is not None:
            worker = self._worker = await _start()
        stdin, stdout = worker.stdin, worker.stdout
        assert stdin is not None
        assert stdout is not None
        whole = False
        try:
            contents = self._context_length.to_bytes(LENGTH_BYTES, "big")
            stdin.write((len(contents) + len(body)).to_bytes(LENGTH_BYTES, "big") + contents)
            for start in range(0, len(body), PIECE_BYTES):
                stdin.write(body[start : start + PIECE_BYTES])
                await stdin.drain()
            length = int.from_bytes(await stdout.readexactly(LENGTH_BYTES), "big")
            answer = await stdout.readexactly(length)
            whole = answer[:1] == STAYS
            return answer[1:]
        except (OSError, asyncio.IncompleteReadError) as error:
            logger.warning("the process that reads large bodies ended: %s", type(error).__name__)
            return None
        finally:
            if not whole:  # it ends by itself, died, or the caller left it in the middle of a body
                self._worker = None
                await asyncio.shield(_end(worker))

    async def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            worker, self._worker = self._worker, None
            await _end(worker)


async def _start() -> asyncio.subprocess.Process:
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "openclaw.gateway.large_bodies"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "MALLOC_ARENA_MAX": "1"},
    )


async def _end(worker: asyncio.subprocess.Process) -> None:
    """End the worker at once; it holds nothing of value."""
    with suppress(ProcessLookupError):
        worker.kill()
    with suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            await worker.wait()


def give_back_memory() -> None:
    """Return the freed memory of large bodies to the system; a no-op without glibc."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def main() -> None:
    """Answer bodies from standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the runtime decides
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    gc.disable()  # JSON has no cycles, and each collection would visit millions of lists again
    source, target = sys.stdin.buffer, sys.stdout.buffer
    grown = False
    while not grown and (head := source.read(LENGTH_BYTES)):
        answer = _answer(source, int.from_bytes(head, "big"))
        grown = _peak_kb() > MAX_RESIDENT_KB
        target.write((1 + len(answer)).to_bytes(LENGTH_BYTES, "big") + (GROWN if grown else STAYS) + answer)
        target.flush()


def _peak_kb() -> int:
    """Return the most memory that this process ever held; `getrusage` would count its parent's too."""
    with Path("/proc/self/status").open() as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def _answer(source: BinaryIO, length: int) -> bytes:
    context_length, dialect = int.from_bytes(source.read(LENGTH_BYTES), "big"), READ[source.read(1)[0]]
    body = source.read(length - LENGTH_BYTES - 1)
    try:
        return SLIM + slim(dialect.read(body, context_length))
    except ApiError as error:
        names = ("status", "message", "code", "param", "kind", "limit", "excess", "streamed")
        return REFUSED + orjson.dumps({name: getattr(error, name) for name in names})


if __name__ == "__main__":
    main()
