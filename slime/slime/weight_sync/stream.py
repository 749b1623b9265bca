"""Weights as a stream from one process to others of this machine, through a little memory that all of them map.

The memory is a ring of ``SLOTS`` slots that fit a processor's cache: what the writer puts there is read before it reaches main
memory, so a stream costs little more than one copy. The writer announces each tensor to each reader by a line in a pipe (JSON: name,
dtype, shape), then each piece of its bytes by an empty line; a reader answers a piece with one byte, and a slot is written again once
all readers have answered. Pipes are opened through ``/proc``, like the memory, so nothing has a name that could be left behind.

Guarantees: a reader whose writer dies is told so by the end of its pipe; a writer never waits for readers longer than ``check``
allows. A tensor has at least one piece, so the lines under way are few and a write to a pipe never blocks.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from slime.weight_sync.segments import Mappings, Segment

SLOTS = 4
SLOT_BYTES = 4 << 20
CHECK_MILLISECONDS = 200
_PIECE, _END, _TAKEN = b"\n", b"end\n", b"."


class WriterGoneError(RuntimeError):
    """The writer died before the end of its stream."""


def number_of_pieces(nbytes: int) -> int:
    """Return the number of slots that a tensor of ``nbytes`` fills."""
    return max(1, -(-nbytes // SLOT_BYTES))


class StreamWriter:
    """Owns the memory and the pipes; :meth:`close` releases them."""

    def __init__(self, readers: int) -> None:
        self._memory = Segment(SLOTS * SLOT_BYTES)
        self._news = [os.pipe() for _ in range(readers)]
        self._answers = [os.pipe() for _ in range(readers)]
        self._taken = [0] * readers
        self._written = 0
        self._poll = select.poll()
        for end, _ in self._answers:
            self._poll.register(end, select.POLLIN)

    def sources(self) -> list[dict[str, Any]]:
        """Return for each reader where its :class:`StreamReader` finds the stream."""
        memory = self._memory.source(SLOTS * SLOT_BYTES)
        return [
            {"memory": memory, "news": _place(news[0]), "answers": _place(answers[1])}
            for news, answers in zip(self._news, self._answers, strict=True)
        ]

    def send(self, name: str, tensor: Tensor, check: Callable[[], None]) -> None:
        """Write a CPU tensor; return once its last piece is in a slot.

        While waiting for readers, ``check`` is called periodically; it raises if they have ended.
        """
        whole = tensor.detach().contiguous()
        data = whole.view(-1).view(torch.uint8)
        self._tell(
            json.dumps([name, str(whole.dtype).removeprefix("torch."), list(whole.shape)]).encode() + b"\n",
        )
        for number in range(number_of_pieces(data.numel())):
            piece = data[number * SLOT_BYTES : (number + 1) * SLOT_BYTES]
            while self._written - min(self._taken) >= SLOTS:
                self._wait(check)
            start = self._written % SLOTS * SLOT_BYTES
            self._memory.data[start : start + piece.numel()].copy_(piece)
            self._written += 1
            self._tell(_PIECE)

    def end(self, check: Callable[[], None]) -> None:
        """End the stream and wait until all readers have taken everything; another stream may follow."""
        while min(self._taken) < self._written:
            self._wait(check)
        self._tell(_END)
        self._taken = [0] * len(self._taken)
        self._written = 0

    def close(self) -> None:
        """Release everything; a reader that still reads learns that the writer is gone."""
        for pipe in (*self._news, *self._answers):
            for end in pipe:
                os.close(end)
        self._news, self._answers, self._taken = [], [], []
        self._memory.close()

    def _tell(self, line: bytes) -> None:
        for _, end in self._news:
            os.write(end, line)

    def _wait(self, check: Callable[[], None]) -> None:
        """Wait for at least one reader's answer and process all answers."""
        ready = {end for end, _ in self._poll.poll(CHECK_MILLISECONDS)}
        if not ready:
            check()
        for reader, (end, _) in enumerate(self._answers):
            if end in ready:
                self._taken[reader] += len(os.read(end, SLOTS))


class StreamReader:
    """Reads one stream; a context manager. Tensors and their pieces come in the writer's order."""

    def __init__(self, source: dict[str, Any], mappings: Mappings) -> None:
        """``source``: see :meth:`StreamWriter.sources`.

        Raises:
            OSError: the writer is gone, or on another machine.
        """
        self._memory = mappings.bytes_of(source["memory"])
        self._news = os.fdopen(_opened(source["news"], os.O_RDONLY), "rb")
        self._answers = _opened(source["answers"], os.O_WRONLY)
        self._read = 0

    def __enter__(self) -> StreamReader:
        """Return the reader, which is already open."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the pipes."""
        self._news.close()
        os.close(self._answers)

    def announced(self) -> Iterator[tuple[str, torch.dtype, list[int]]]:
        """Yield name, dtype and shape of each tensor; take all its :meth:`pieces` before the next.

        Raises:
            WriterGoneError: the stream ends early.
        """
        while (line := self._line()) != _END:
            name, dtype, shape = json.loads(line)
            yield name, getattr(torch, dtype), shape

    def pieces(self, nbytes: int) -> Iterator[Tensor]:
        """Yield a tensor's bytes piece by piece; a piece is valid until the next one is requested."""
        for number in range(number_of_pieces(nbytes)):
            self._line()
            start = self._read % SLOTS * SLOT_BYTES
            yield self._memory[start : start + min(SLOT_BYTES, nbytes - number * SLOT_BYTES)]
            self._read += 1
            try:
                os.write(self._answers, _TAKEN)
            except BrokenPipeError:
                raise WriterGoneError("the writer ended before its stream did") from None

    def _line(self) -> bytes:
        line = self._news.readline()
        if not line.endswith(b"\n"):
            raise WriterGoneError("the writer ended before its stream did")
        return line


def _place(end: int) -> dict[str, Any]:
    return {"path": f"/proc/{os.getpid()}/fd/{end}", "inode": os.fstat(end).st_ino}


def _opened(place: dict[str, Any], mode: int) -> int:
    end = os.open(place["path"], mode | os.O_NONBLOCK)
    if os.fstat(end).st_ino != place["inode"]:
        os.close(end)
        raise FileNotFoundError(f"{place['path']} is another pipe by now")
    os.set_blocking(end, True)
    return end
