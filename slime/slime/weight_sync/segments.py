"""Memory that other processes of this machine can map, and that disappears with its owner.

The host's has no name in a file system (``memfd``): others open it as a file of the owner in ``/proc``, so a killed trainer
leaves nothing behind and the size of ``/dev/shm`` does not matter. A GPU's is opened by a CUDA IPC handle.

A stream carries weights from one process to others of this machine through a little such memory: a ring of ``SLOTS``
slots that fit a processor's cache: what the writer puts there is read before it reaches main memory, so a stream costs
little more than one copy. The writer announces each tensor to each reader by a line in a pipe (JSON: name, dtype,
shape), then each piece of its bytes by an empty line; a reader answers a piece with one byte, and a slot is written
again once all readers have answered. Pipes are opened through ``/proc``, like the memory, so nothing has a name that
could be left behind.

Guarantees: a reader whose writer dies is told so by the end of its pipe; a writer never waits for readers longer than ``check``
allows. A tensor has at least one piece, so the lines under way are few and a write to a pipe never blocks.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import mmap
import os
import pickle
import select
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor

from groundwork.exceptions import ConfigError
from groundwork.machine import this_host

logger = logging.getLogger(__name__)

HUGE_PAGE = 2 << 20


class Segment:
    """Owned memory of the host; ``data`` are its bytes."""

    def __init__(self, size: int, *, pinned: bool = False) -> None:
        """``pinned``: a GPU accesses it without an intermediate copy."""
        size = -(-size // HUGE_PAGE) * HUGE_PAGE
        self._file = os.memfd_create("slime-weights")
        os.ftruncate(self._file, size)
        self.data = _map(self._file, size)
        self._pinned = pinned
        if pinned:
            pin(self.data)

    def source(self, size: int) -> dict[str, Any]:
        """Return for another process's :class:`Mappings` where the first ``size`` bytes are."""
        inode = os.fstat(self._file).st_ino
        return {"path": f"/proc/{os.getpid()}/fd/{self._file}", "inode": inode, "owner": os.getpid(), "size": size}

    def close(self) -> None:
        """Release the memory; processes that mapped it keep it."""
        if self._pinned:
            unpin(self.data)
        self.data = torch.empty(0, dtype=torch.uint8)
        os.close(self._file)


class DeviceSegment:
    """Owned memory of a GPU that one other process opens by a CUDA IPC handle; ``data`` are its bytes.

    Torch counts one use of a handle, so the process must keep what it opens, as :class:`Mappings` does. After a process that
    died without letting go, torch never frees the memory: :meth:`renew` it for the next process, do not replace it.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.data = torch.empty(size, dtype=torch.uint8, device=device)
        self._handle = ""

    def source(self, size: int) -> dict[str, Any]:
        """Return for the other process's :class:`Mappings` where the first ``size`` bytes are."""
        self._handle = self._handle or base64.b64encode(ForkingPickler.dumps(self.data)).decode()
        return {"handle": self._handle, "owner": os.getpid(), "size": size}

    def renew(self) -> None:
        """Make a new handle for another process."""
        self._handle = ""

    def close(self) -> None:
        """Release the memory, which torch frees once the process that opened it has let go too."""
        self.data = torch.empty(0, dtype=torch.uint8)


class Mappings:
    """Another process's segments in this one.

    Guarantees: each is opened once, and pinned once if this process uses CUDA. Pinning is for speed: memory that CUDA cannot pin
    is read unpinned, with a warning. The ``limit`` most recent stay open, and those of one owner only: with the first segment
    of another one the others go, because theirs is gone.
    """

    def __init__(self, limit: int = 2) -> None:
        self._limit = limit
        self._owner = 0
        self._open: dict[str, tuple[Tensor, bool]] = {}
        self.opened = 0
        """How many were opened so far."""

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._open)

    def bytes_of(self, source: dict[str, Any]) -> Tensor:
        """Return the bytes at ``source``, which are the owner's to write.

        Raises:
            OSError: the owner is gone, or on another machine.
            RuntimeError: CUDA cannot open them.
        """
        if source["owner"] != self._owner:
            self.close()
            self._owner = source["owner"]
        key = source.get("handle") or f"{source['path']} {source['inode']}"
        segment = self._open.pop(key, None) or self._opened(source)
        self._open[key] = segment
        while len(self._open) > self._limit:
            _let_go(*self._open.pop(next(iter(self._open))))
        return segment[0][: source["size"]]

    def _opened(self, source: dict[str, Any]) -> tuple[Tensor, bool]:
        """Return the segment's bytes, and whether they are pinned."""
        if "handle" in source:
            data, pinned = pickle.loads(base64.b64decode(source["handle"])), False
        else:
            data = _mapped(source)
            pinned = torch.cuda.is_initialized() and _pinned(data)
        self.opened += 1
        return data, pinned

    def close(self) -> None:
        """Let go of all."""
        while self._open:
            _let_go(*self._open.popitem()[1])


def _pinned(data: Tensor) -> bool:
    """Pin ``data`` if CUDA can; return whether it did."""
    try:
        pin(data)
    except RuntimeError as error:
        logger.warning("pushes load weights from memory that is not pinned, which takes longer: %s", error)
        return False
    return True


def _let_go(data: Tensor, pinned: bool) -> None:
    if pinned:
        unpin(data)


def _mapped(source: dict[str, Any]) -> Tensor:
    file = os.open(source["path"], os.O_RDWR)  # CUDA pins only what can be written
    try:
        status = os.fstat(file)
        # The path names a descriptor of a process, whose number another process or file may have by now.
        if status.st_ino != source["inode"]:
            raise FileNotFoundError(f"{source['path']} is another file by now")
        return _map(file, status.st_size)
    finally:
        os.close(file)


def _map(file: int, size: int) -> Tensor:
    memory = mmap.mmap(file, size, flags=mmap.MAP_SHARED)
    with contextlib.suppress(OSError):  # without large pages it is only slower
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def pin(data: Tensor) -> None:
    """Register host memory with CUDA.

    Raises:
        RuntimeError: CUDA refuses; later kernels are not affected.
    """
    runtime: Any = torch.cuda.cudart()
    try:
        torch.cuda.check_error(runtime.cudaHostRegister(data.data_ptr(), data.numel(), 0))
    except RuntimeError as error:
        _clear_error()
        raise RuntimeError(
            f"CUDA cannot pin {data.numel() >> 20} MiB of host memory ({error}); free some, raise the limit of locked memory "
            "(ulimit -l), or lower --update-weight-buffer-size"
        ) from error


def _clear_error() -> None:
    """Take CUDA's last error, which torch would report for the next kernel; torch has no call that takes it."""
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda")


def unpin(data: Tensor) -> None:
    """Undo :func:`pin`."""
    runtime: Any = torch.cuda.cudart()
    torch.cuda.check_error(runtime.cudaHostUnregister(data.data_ptr()))


def check_same_host(hosts: Sequence[Sequence[str]]) -> None:
    """Compare the machines of each policy engine, in order, with this process's.

    Raises:
        ConfigError: an engine cannot share memory with this process.
    """
    here = this_host()
    for position, machines in enumerate(hosts):
        if set(machines) != {here}:
            raise ConfigError(
                f"policy engine {position} is not on the machine of training rank 0; use --update-weight-transport nccl"
            )


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
            # A slot is free once the slowest reader has taken what it holds.
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
                self._taken[reader] += len(os.read(end, SLOTS))  # a byte per piece


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
