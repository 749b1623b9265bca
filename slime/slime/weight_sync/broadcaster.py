"""Broadcasts in a thread of their own, so that the caller can watch the engines and gather the next weights meanwhile.

NCCL connects in the first broadcast and blocks the calling thread until all members have come; nothing but the end of the group
frees it. Guarantees: the caller never blocks in a broadcast; a broadcast that never ends holds neither the caller nor the end of
the process, because the thread is a daemon; on CUDA a broadcast begins when what its caller launched before is done, runs on a
stream of its own beside what the caller launches later, and is done when its bytes have left the buffer.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Protocol

import torch
from torch import Tensor


class Group(Protocol):
    """A joined group that this process is rank 0 of."""

    def broadcast(self, data: Tensor) -> None:
        """Send ``data`` to all members."""
        ...


class Broadcaster:
    """Owns the thread of one group."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self._queue: SimpleQueue[tuple[Tensor, Any, Future[None]] | None] = SimpleQueue()
        threading.Thread(target=_run, args=(group, device, self._queue), name="send-weights", daemon=True).start()

    def send(self, data: Tensor) -> Future[None]:
        """Begin to broadcast ``data``, which must not change until the result is there."""
        sending: Future[None] = Future()
        ready = torch.cuda.current_stream(data.device).record_event() if data.is_cuda else None
        self._queue.put((data, ready, sending))
        return sending

    def close(self) -> None:
        """Let the thread end after the broadcast that is under way."""
        self._queue.put(None)


def _run(group: Group, device: torch.device, queue: SimpleQueue[tuple[Tensor, Any, Future[None]] | None]) -> None:
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    while (item := queue.get()) is not None:
        data, ready, sending = item
        try:
            if stream is None or ready is None:
                group.broadcast(data)
            else:
                with torch.cuda.device(device), torch.cuda.stream(stream):
                    stream.wait_event(ready)
                    group.broadcast(data)
                    stream.synchronize()
        except Exception as error:  # noqa: BLE001 - it is the caller's: `Future.result` raises it there
            # Its traceback would hold the group, and members of a gloo group are let go with the last reference to it.
            sending.set_exception(error.with_traceback(None))
        else:
            sending.set_result(None)
        del item, data, ready, sending
