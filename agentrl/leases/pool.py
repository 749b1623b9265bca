"""A pool of environments that are lent out by lease.

Guarantees: at most ``slots`` environments exist, and they fit into memory and cores. A slot is free only after its
environment is closed. No call waits for another lease's environment; `renew`, `status` and `release` wait for none. A
lease that nobody keeps expires. `start` ends what a crashed server left, `stop` closes everything.

Used from one event loop. Owns the table of leases; the ledger stays the caller's.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentrl.environment import Registry, Weight
from agentrl.exceptions import AgentError, CapacityError, InfraError, NotFoundError
from agentrl.leases.lease import CLOSE_TIMEOUTS, CloseTimeouts, Lease, Outcome, close, joined
from agentrl.leases.metrics import PoolMetrics
from agentrl.processes import Processes, ProcessLedger, end_leftovers
from agentrl.protocol import (
    WORKER_MARGIN_S,
    EvaluateRequest,
    Leased,
    LeaseRequest,
    Observation,
    PoolStatus,
    Released,
    Renewed,
    RenewRequest,
    ResetRequest,
    StepRequest,
    StepResult,
    Verdict,
)

MIN_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0


class Capacity:
    """Admission to a pool: its slots, memory and processor cores, what of them is taken, and the queue for them.

    First come, first served: nobody overtakes, so a heavy task is not starved by light ones. A task that never fits is refused at
    once. A waiter that leaves, even in the moment of its admission, takes nothing along. Used from one event loop.
    """

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


logger = logging.getLogger(__name__)
REAP_S = 0.5


class Pool:
    """Implements `agentrl.protocol.LeaseService`; `start` it before, and `stop` it after.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from prometheus_client import CollectorRegistry
        >>> from agentrl.client import episode
        >>> from agentrl.environment import Environment, Task
        >>> class Ready(Environment):
        ...     @classmethod
        ...     def tasks(cls):
        ...         return [Task("ready")]
        ...     async def reset(self, task, seed):
        ...         return Observation(text="Say that you are ready.")
        ...     async def step(self, action):
        ...         return StepResult(observation=Observation(), done=True)
        ...     async def evaluate(self):
        ...         return Verdict(status="ok", score=1.0)
        ...     async def close(self):
        ...         pass
        >>> async def one_episode(folder):
        ...     ledger = ProcessLedger(Path(folder) / "processes.sqlite")
        ...     pool = Pool(Registry([Ready]), Capacity(4, Weight()), ledger, PoolMetrics(CollectorRegistry()))
        ...     await pool.start()
        ...     async with episode(pool, "ready") as leased:
        ...         await leased.reset()
        ...         await leased.step({"text": "ready"})
        ...         verdict = await leased.evaluate()
        ...     await pool.stop(10.0)
        ...     ledger.close()
        ...     return verdict.score
        >>> with TemporaryDirectory() as folder:
        ...     asyncio.run(one_episode(folder))
        1.0
    """

    def __init__(
        self,
        registry: Registry,
        capacity: Capacity,
        ledger: ProcessLedger,
        metrics: PoolMetrics,
        *,
        timeouts: CloseTimeouts = CLOSE_TIMEOUTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare an empty pool; ``clock`` is monotonic, in seconds."""
        self._registry = registry
        self._capacity = capacity
        self._ledger = ledger
        self._metrics = metrics
        self._timeouts = timeouts
        self._clock = clock
        self._leases: dict[str, Lease] = {}
        self._requests: dict[str, asyncio.Task[Outcome[Leased]]] = {}
        self._closing: dict[str, tuple[Lease, asyncio.Task[None]]] = {}
        self._stuck: set[str] = set()
        self._threads = ThreadPoolExecutor(capacity.slots, "blocking")
        self._stopping = False
        self._reaper: asyncio.Task[None] | None = None
        metrics.show_load(
            used=lambda: capacity.used_slots,
            waiting=lambda: capacity.waiting,
            leases=lambda: len(self._leases),
            stuck=lambda: len(self._stuck),
        )

    async def start(self) -> int:
        """End what a crashed server left and begin to serve; return how many process groups it left.

        Raises:
            InfraError: some of it does not end.
        """
        left = await end_leftovers(self._ledger)
        self._metrics.leftovers.inc(left)
        self._reaper = asyncio.create_task(self._reap_forever(), name="reaper")
        return left

    async def stop(self, seconds: float) -> int:
        """Refuse new leases, end all and close their environments.

        Returns:
            How many are not closed after ``seconds``; their processes were killed.
        """
        self._stopping = True
        if self._reaper is not None:
            self._reaper.cancel()
        for task in self._requests.values():
            task.cancel()
        for lease_id in list(self._leases):
            self._end(lease_id, "pool_ended")
        if self._closing:
            await asyncio.wait([task for _, task in self._closing.values()], timeout=seconds)
        left = list(self._closing.values())
        self._closing.clear()
        for lease, task in left:
            task.cancel()
            await lease.processes.end()
        self._threads.shutdown(wait=False, cancel_futures=True)
        return len(left)

    async def lease(self, request: LeaseRequest) -> Leased:
        """See `agentrl.protocol.LeaseService.lease`."""
        if self._stopping:
            raise self._ending()
        task = self._requests.get(request.request_id)
        if task is None:
            task = asyncio.create_task(self._grant(request), name=f"lease for {request.request_id}")
            self._requests[request.request_id] = task
            task.add_done_callback(lambda task: task.cancelled() and self._forget(request.request_id))
        else:
            self._metrics.replays.labels(operation="lease").inc()
        return await joined(task, request.wait_s + WORKER_MARGIN_S, self._ending())

    async def renew(self, lease_id: str, request: RenewRequest) -> Renewed:
        """See `agentrl.protocol.LeaseService.renew`."""
        return Renewed(expires_in_s=self._find(lease_id).renew(request.ttl_s))

    async def reset(self, lease_id: str, request: ResetRequest) -> Observation:
        """See `agentrl.protocol.LeaseService.reset`."""
        return await self._find(lease_id).reset(request)

    async def step(self, lease_id: str, request: StepRequest) -> StepResult:
        """See `agentrl.protocol.LeaseService.step`."""
        return await self._find(lease_id).step(request)

    async def evaluate(self, lease_id: str, request: EvaluateRequest) -> Verdict:
        """See `agentrl.protocol.LeaseService.evaluate`."""
        return await self._find(lease_id).evaluate(request)

    async def release(self, lease_id: str) -> Released:
        """See `agentrl.protocol.LeaseService.release`."""
        if (request := self._requests.get(lease_id)) is not None:
            if not request.done():
                request.cancel()
                return Released(found=True)
            lease_id = next((lease.id for lease in self._leases.values() if lease.request_id == lease_id), lease_id)
        found = lease_id in self._leases or lease_id in self._closing
        self._end(lease_id, "released")
        return Released(found=found)

    async def status(self) -> PoolStatus:
        """See `agentrl.protocol.LeaseService.status`."""
        capacity = self._capacity
        return PoolStatus(
            slots=capacity.slots,
            used=capacity.used_slots,
            waiting=capacity.waiting,
            leases=len(self._leases),
            closing=len(self._closing) - len(self._stuck),
            stuck=len(self._stuck),
            memory_mib=capacity.size.memory_mib,
            used_memory_mib=capacity.used.memory_mib,
            cpu=capacity.size.cpu,
            used_cpu=round(capacity.used.cpu, 6),
            tasks=len(self._registry),
            accepting=not self._stopping,
        )

    def reap(self) -> int:
        """End the leases that have expired; return how many."""
        expired = [lease.id for lease in self._leases.values() if lease.expires_in_s <= 0]
        for lease_id in expired:
            logger.warning("lease %s expired", lease_id)
            self._end(lease_id, "expired")
        return len(expired)

    async def _reap_forever(self) -> None:
        while True:
            await asyncio.sleep(REAP_S)
            self.reap()

    async def _grant(self, request: LeaseRequest) -> Outcome[Leased]:
        """Wait for room and make an environment; return the lease or the error."""
        try:
            task, environment = self._registry.find(request.task_id)
            asked = self._clock()
            await self._capacity.acquire(task.weight, request.wait_s)
        except AgentError as error:
            self._forget(request.request_id)
            self._metrics.refused.labels(code=error.code).inc()
            return error
        processes = Processes(self._ledger)
        try:
            made = environment(processes)
            made.lend_threads(self._threads)
        except Exception as error:
            logger.exception("%s cannot be made", environment.__name__)
            self._capacity.release(task.weight)
            self._forget(request.request_id)
            self._metrics.refused.labels(code="environment_failed").inc()
            return InfraError(f"{environment.__name__} cannot be made: {error}", code="environment_failed")
        lease = Lease(
            *(secrets.token_hex(16), task, made, processes),
            request_id=request.request_id,
            ttl_s=request.ttl_s,
            clock=self._clock,
            metrics=self._metrics,
            cancel_grace_s=self._timeouts.cancel_grace_s,
        )
        self._leases[lease.id] = lease
        queued = self._clock() - asked
        self._metrics.granted.inc()
        self._metrics.queued.observe(queued)
        return Leased(lease_id=lease.id, expires_in_s=lease.expires_in_s, queued_s=queued)

    def _forget(self, request_id: str) -> None:
        """Let the same ``request_id`` ask again."""
        self._requests.pop(request_id, None)

    def _find(self, lease_id: str) -> Lease:
        lease = self._leases.get(lease_id)
        if lease is not None and lease.expires_in_s <= 0:
            self._end(lease_id, "expired")
            lease = None
        if lease is None:
            raise NotFoundError("there is no such lease, or it has expired; take a new one", code="unknown_lease")
        return lease

    def _end(self, lease_id: str, why: str) -> None:
        """Take a lease out of the table, stop what runs, and close its environment in the background."""
        if (lease := self._leases.pop(lease_id, None)) is None:
            return
        self._forget(lease.request_id)
        self._metrics.ended.labels(why=why).inc()
        task = asyncio.create_task(self._close(lease, lease.stop()), name=f"closing {lease_id}")
        self._closing[lease_id] = lease, task

    async def _close(self, lease: Lease, running: list[asyncio.Task[Any]]) -> None:
        """Close a lease's environment; its slot becomes free when that is done, and not before."""
        await close(
            *(lease.id, lease.environment, lease.processes, running),
            timeouts=self._timeouts,
            metrics=self._metrics,
            on_stuck=lambda: self._stuck.add(lease.id),
        )
        self._stuck.discard(lease.id)
        del self._closing[lease.id]
        self._capacity.release(lease.task.weight)

    def _ending(self) -> InfraError:
        return InfraError("the request was withdrawn, or the pool is shutting down; ask another", code="withdrawn")
