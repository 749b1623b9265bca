"""Admission to a pool: slots, memory and processor cores, first come, first served.

Guarantees: nobody overtakes, so a heavy task is not starved by light ones. A task that never fits is refused at once. A
waiter that leaves, even in the moment of its admission, takes nothing along. Used from one event loop; owns the queue.
"""

from __future__ import annotations

import asyncio
from collections import deque

from agentrl.environment import Weight
from agentrl.exceptions import CapacityError

MIN_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0


class Capacity:
    """What a pool has, and what of it is taken."""

    def __init__(self, slots: int, size: Weight) -> None:
        """Start with everything free.

        Args:
            slots: most environments at a time.
            size: memory and cores of all of them together.
        """
        self.slots = slots
        self.size = size
        self.used_slots = 0
        self.used = Weight()
        self._queue: deque[tuple[Weight, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """Return the length of the queue."""
        return sum(not admitted.done() for _, admitted in self._queue)

    async def acquire(self, weight: Weight, wait_s: float) -> None:
        """Take a slot and ``weight``, after waiting for up to ``wait_s`` seconds.

        Raises:
            CapacityError: not in time, with the time after which to ask again; or never.
        """
        if not weight.fits(self.size):
            raise CapacityError(
                f"the task needs {_shown(weight)}, and the whole pool has {_shown(self.size)}; use a larger pool",
                code="larger_than_pool",
            )
        admitted = asyncio.get_running_loop().create_future()
        self._queue.append((weight, admitted))
        self._admit()
        try:
            if not admitted.done():
                await asyncio.wait({admitted}, timeout=wait_s)
        except BaseException:
            if not admitted.cancel():
                self.release(weight)
            raise
        finally:
            if not admitted.done():
                admitted.cancel()
            self._admit()
        if admitted.cancelled():
            raise CapacityError(
                f"no environment became free within {wait_s:g} s; {self.used_slots} of {self.slots} slots are in use",
                code="pool_is_full",
                retryable=True,
                retry_after_s=min(MAX_RETRY_SECONDS, MIN_RETRY_SECONDS + self.waiting / self.slots),
            )

    def release(self, weight: Weight) -> None:
        """Give a slot and ``weight`` back, and admit who waits for it."""
        self.used_slots -= 1
        self.used -= weight
        self._admit()

    def _admit(self) -> None:
        while self._queue:
            weight, admitted = self._queue[0]
            if not admitted.done():
                if self.used_slots >= self.slots or not (self.used + weight).fits(self.size):
                    return
                self.used_slots += 1
                self.used += weight
                admitted.set_result(None)
            self._queue.popleft()


def _shown(weight: Weight) -> str:
    return f"{weight.memory_mib} MiB and {weight.cpu:g} cores"
