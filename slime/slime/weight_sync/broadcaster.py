"""Broadcast in a separate thread.

The caller can watch the engines and gather the next weights meanwhile. NCCL connects in the first broadcast. It blocks
the calling thread until all members have joined or the group ends.

Guarantees:

* The caller never blocks in a broadcast.
* A broadcast that never ends does not keep the process alive, because the thread is a daemon.
* On CUDA, a broadcast waits for the caller's earlier kernels and runs on its own stream, concurrently with later ones. It is
  done once its bytes have left the buffer.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Protocol

import torch
from torch import Tensor


class Group(Protocol):
    """A joined group in which this process is rank 0."""

    def broadcast(self, data: Tensor) -> None:
        """Send ``data`` to all members."""
        ...


class Broadcaster:
    """Owns the thread of one group."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self._queue: SimpleQueue[tuple[Tensor, Any, Future[None]] | None] = SimpleQueue()
        threading.Thread(target=_run, args=(group, device, self._queue), name="send-weights", daemon=True).start()

    def send(self, data: Tensor) -> Future[None]:
        """Start to broadcast ``data``, which must not change until the future is done."""
        sending: Future[None] = Future()
        ready = torch.cuda.current_stream(data.device).record_event() if data.is_cuda else None
        self._queue.put((data, ready, sending))
        return sending

    def close(self) -> None:
        """End the thread after the current broadcast."""
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
        except Exception as error:  # noqa: BLE001 - `Future.result` raises it in the caller
            # The traceback would keep a reference to the group; a gloo group frees its members with the last reference.
            sending.set_exception(error.with_traceback(None))
        else:
            sending.set_result(None)
        del item, data, ready, sending
