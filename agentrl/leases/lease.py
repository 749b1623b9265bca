"""One lease: its clock, its lock, its operations, each of which runs once, and its end.

Guarantees: `reset`, `step` and `evaluate` run one at a time, in the order in which they came. Only the next ``seq`` is
executed; a repeated one gets the answer of the first, even while that still runs. Any number of callers wait for an operation; one
that leaves does not end it. An environment that failed is never called again, except to close it, and its verdict has no score.
The lease expires ``ttl_s`` after its last renewal or the start or end of an operation; an operation under way keeps it until the
operation's own deadline.

`close` returns only when `Environment.close` has returned, and all processes and blocking calls of the lease are gone. Until then
every attempt that raises, hangs or leaves some is counted and logged, and closing is tried again, at growing intervals. A close
that hangs and ignores its cancellation is waited for, never called a second time beside itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from agentrl.environment import Environment, Task
from agentrl.exceptions import AgentError, DeadlineError, InfraError, InternalError, InvalidError, NotFoundError
from agentrl.leases.metrics import PoolMetrics
from agentrl.processes import Processes
from agentrl.protocol import (
    PASSED,
    WORKER_MARGIN_S,
    EvaluateRequest,
    Observation,
    OperationRequest,
    ResetRequest,
    StepRequest,
    StepResult,
    Verdict,
)

T = TypeVar("T")
Outcome = T | AgentError
logger = logging.getLogger(__name__)
CANCEL_GRACE_S = 2.0
"""How long a cancelled operation may take to end before it is abandoned."""
KEPT_ANSWERS = 2
"""The newest operations whose answers are kept for a repeated request."""


async def ended_in_time(task: asyncio.Task[Any], seconds: float, grace_s: float = CANCEL_GRACE_S) -> bool:
    """Wait for a task; return False if it had to be cancelled after ``seconds``.

    A task that ignores its cancellation is abandoned after ``grace_s`` more. If the caller is cancelled, so is the task.
    """
    task.add_done_callback(_note_late_error)
    try:
        await asyncio.wait({task}, timeout=seconds)
        return task.done()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=grace_s)


async def awaited(call: Callable[[], Awaitable[T]]) -> T:
    """Call foreign code and await it; whatever it does wrong is an exception of this coroutine."""
    try:
        return await call()
    except SystemExit as error:
        raise RuntimeError(f"it asked the whole process to exit with {error.code}") from error


def _note_late_error(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a task that nobody may await any more."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.debug("%s ended with %r", task.get_name(), error)


async def joined(task: asyncio.Task[Outcome[T]], seconds: float, if_cancelled: AgentError) -> T:
    """Wait for an operation for up to ``seconds``, and return its answer.

    Raises:
        DeadlineError: it still runs; retryable, since a retry waits for the same operation.
        AgentError: that of the operation, or ``if_cancelled`` if it was stopped.
    """
    await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        raise DeadlineError(
            f"no answer within {seconds:g} s; the operation still runs, repeat the request to wait for it",
            code="still_running",
            retryable=True,
        )
    if task.cancelled():
        raise if_cancelled
    outcome = task.result()
    if isinstance(outcome, AgentError):
        raise outcome.again()
    return outcome


@dataclass(slots=True)
class Run:
    """An operation that was accepted, and the request that it is for."""

    request: OperationRequest
    task: asyncio.Task[Any]


class Lease:
    """A granted lease; owns its environment."""

    def __init__(
        self,
        lease_id: str,
        task: Task,
        environment: Environment,
        processes: Processes,
        *,
        request_id: str,
        ttl_s: float,
        clock: Callable[[], float],
        metrics: PoolMetrics,
        cancel_grace_s: float = CANCEL_GRACE_S,
    ) -> None:
        """Start the lease's time.

        Args:
            lease_id: names it.
            task: of its episode.
            environment: only for this lease.
            processes: those of ``environment``.
            request_id: of the request that asked for it.
            ttl_s: seconds until it expires.
            clock: monotonic, in seconds.
            metrics: of the pool.
            cancel_grace_s: seconds that an operation may take to end after its deadline.
        """
        self.id = lease_id
        self.task = task
        self.environment = environment
        self.processes = processes
        self.request_id = request_id
        self._ttl_s = ttl_s
        self._clock = clock
        self._metrics = metrics
        self._grace_s = cancel_grace_s
        self._used = clock()
        self._pinned = self._used
        self._lock = asyncio.Lock()
        self._runs: dict[int, Run] = {}
        self._seq = 0
        self._verdict: asyncio.Task[Outcome[Verdict]] | None = None
        self._began = self._over = self._judged = False
        self._failure: Verdict | None = None

    @property
    def expires_in_s(self) -> float:
        """Return the seconds until the lease expires; zero or less: it has expired."""
        return max(self._used + self._ttl_s, self._pinned) - self._clock()

    def renew(self, ttl_s: float) -> float:
        """Keep the lease for ``ttl_s`` seconds from now; return the seconds until it expires."""
        self._ttl_s = ttl_s
        self._used = self._clock()
        return self.expires_in_s

    async def reset(self, request: ResetRequest) -> Observation:
        """Reset the environment; errors as in `agentrl.protocol.LeaseService.step`."""
        return await self._once(request, "reset", Observation, lambda: self.environment.reset(self.task, request.seed))

    async def step(self, request: StepRequest) -> StepResult:
        """Step the environment; errors as in `agentrl.protocol.LeaseService.step`."""
        return await self._once(request, "step", StepResult, lambda: self.environment.step(request.action))

    async def evaluate(self, request: EvaluateRequest) -> Verdict:
        """Return the verdict of the episode; errors as in `agentrl.protocol.LeaseService.evaluate`."""
        if self._verdict is None:
            self._verdict = asyncio.create_task(self._judge(request.timeout_s), name=f"evaluate of {self.id}")
        else:
            self._metrics.replays.labels(operation="evaluate").inc()
        return await joined(self._verdict, request.timeout_s + WORKER_MARGIN_S, self._released())

    def stop(self) -> list[asyncio.Task[Any]]:
        """Cancel what runs; return it."""
        tasks = [run.task for run in self._runs.values()] + ([self._verdict] if self._verdict else [])
        running = [task for task in tasks if not task.done()]
        for task in running:
            task.cancel()
        return running

    async def _once(self, request: OperationRequest, name: str, kind: type[T], call: Callable[[], Awaitable[T]]) -> T:
        run = self._runs.get(request.seq)
        if run is None:
            if request.seq != self._seq + 1:
                raise InvalidError(
                    f"seq {request.seq} is out of order; the next one is {self._seq + 1}", code="seq_out_of_order"
                )
            self._seq += 1
            work = self._guarded(name, kind, request.timeout_s, call)
            run = Run(request, asyncio.create_task(work, name=f"{name} {request.seq} of {self.id}"))
            self._runs[request.seq] = run
            self._drop_old_answers()
        elif run.request != request:
            raise InvalidError(
                f"seq {request.seq} belongs to another request; the next one is {self._seq + 1}", code="seq_reused"
            )
        else:
            self._metrics.replays.labels(operation=name).inc()
        return await joined(run.task, request.timeout_s + WORKER_MARGIN_S, self._released())

    def _drop_old_answers(self) -> None:
        for seq in [seq for seq in self._runs if seq <= self._seq - KEPT_ANSWERS and self._runs[seq].task.done()]:
            del self._runs[seq]

    async def _guarded(self, name: str, kind: type[T], seconds: float, call: Callable[[], Awaitable[T]]) -> Outcome[T]:
        """Run `reset` or `step` if the episode allows it; return the answer or the error."""
        async with self._lock:
            try:
                self._check(name)
                answer = await self._execute(name, kind, seconds, call)
            except AgentError as error:
                return error.stored()
            self._began = True
            self._over = isinstance(answer, StepResult) and (answer.done or answer.truncated)
            return answer

    def _check(self, name: str) -> None:
        """Raise InvalidError or InfraError if the episode's state forbids the operation."""
        if self._failure is not None:
            raise InfraError(
                f"the environment failed before ({self._failure.detail}); take a new lease", code="environment_failed"
            )
        if self._judged:
            raise InvalidError("the episode was evaluated; take a new lease for another", code="evaluated")
        if name == "step" and not self._began:
            raise InvalidError("the task was never reset; reset it first", code="not_reset")
        if name == "step" and self._over:
            raise InvalidError("the episode is over; evaluate or reset it", code="episode_over")

    async def _judge(self, seconds: float) -> Outcome[Verdict]:
        async with self._lock:
            if self._failure is not None:
                return self._failure
            if not self._began:
                self._verdict = None
                return InvalidError("the task was never reset; reset it first", code="not_reset")
            self._judged = True
            try:
                return await self._execute("evaluate", Verdict, seconds, self.environment.evaluate)
            except AgentError as error:
                return self._failure or error

    async def _execute(self, name: str, kind: type[T], seconds: float, call: Callable[[], Awaitable[T]]) -> T:
        """Call the environment within a deadline, and note whether it failed."""
        self._used = begun = self._clock()
        self._pinned = begun + seconds
        task = asyncio.create_task(awaited(call), name=f"{name} in {self.id}")
        outcome = "cancelled"
        try:
            in_time = await ended_in_time(task, seconds, self._grace_s)
            error = _error_of(task, kind) if in_time else _late(name, seconds)
            outcome = "ok" if error is None else error.kind
            if error is None:
                return task.result()
            if name != "step" or not isinstance(error, InvalidError):
                late = isinstance(error, DeadlineError) and not in_time
                self._failure = Verdict(status="timeout" if late else "infra_error", detail=error.message)
                logger.warning("%s of lease %s failed: %s", name, self.id, error, exc_info=error.__cause__)
            raise error
        finally:
            self._used = self._pinned = self._clock()
            self._metrics.operations.labels(operation=name, outcome=outcome).inc()
            self._metrics.seconds.labels(operation=name).observe(self._used - begun)

    def _released(self) -> NotFoundError:
        return NotFoundError(f"lease {self.id} was released or expired while the operation ran", code="lease_ended")


def _error_of(task: asyncio.Task[Any], kind: type[Any]) -> AgentError | None:
    """Return the error of a finished call of an environment; None if it returned what it should."""
    if task.cancelled():
        return InternalError("the environment cancelled its own operation", code="environment_defect")
    error = task.exception()
    if error is None:
        if isinstance(task.result(), kind):
            return None
        found = type(task.result()).__name__
        return InternalError(f"the environment returned {found} instead of {kind.__name__}", code="environment_defect")
    if isinstance(error, AgentError):
        return error
    defect = InternalError(f"the environment raised {type(error).__name__}: {error}", code="environment_defect")
    defect.__cause__ = error
    return defect


def _late(name: str, seconds: float) -> DeadlineError:
    return DeadlineError(f"{name} took longer than its {seconds:g} s; take a new lease", code=PASSED)


@dataclass(frozen=True, slots=True)
class CloseTimeouts:
    """Seconds for one attempt to close, for a cancelled call to end, and before the first and any later retry."""

    close_s: float = 30.0
    cancel_grace_s: float = CANCEL_GRACE_S
    retry_s: float = 1.0
    longest_retry_s: float = 60.0


CLOSE_TIMEOUTS = CloseTimeouts()


async def close(
    name: str,
    environment: Environment,
    processes: Processes,
    running: Sequence[asyncio.Task[Any]],
    *,
    timeouts: CloseTimeouts,
    metrics: PoolMetrics,
    on_stuck: Callable[[], None],
) -> None:
    """Close an environment, once what runs in it has been cancelled.

    Args:
        name: of the lease, for the log.
        environment: to close.
        processes: of the environment.
        running: cancelled operations.
        timeouts: of closing.
        metrics: counts the failures.
        on_stuck: called after the first attempt that failed.
    """
    if running:
        await asyncio.wait(running, timeout=2 * timeouts.cancel_grace_s)
    pause = timeouts.retry_s
    closing: asyncio.Task[None] | None = None
    closed = False
    while True:
        reason = None
        if not closed:
            if closing is None:
                closing = asyncio.create_task(awaited(environment.close), name=f"close of {name}")
            in_time = await ended_in_time(closing, timeouts.close_s, timeouts.cancel_grace_s)
            closed = in_time and not closing.cancelled() and closing.exception() is None
            if not closed:
                reason = "raised" if in_time else "hung"
                error = closing.exception() if in_time and not closing.cancelled() else None
                logger.error("close of lease %s %s; its slot stays taken until it works", name, reason, exc_info=error)
            if closing.done():
                closing = None
        if not await _ended(name, processes):
            reason = reason or "processes_left"
        if environment.blocked:
            logger.error("a blocking call of lease %s has not ended; its slot stays taken", name)
            reason = reason or "blocked"
        if reason is None:
            return
        metrics.close_failures.labels(reason=reason).inc()
        on_stuck()
        await asyncio.sleep(pause)
        pause = min(2 * pause, timeouts.longest_retry_s)


async def _ended(name: str, processes: Processes) -> bool:
    """End a lease's processes; return whether they are gone and forgotten."""
    try:
        left = await processes.end()
    except Exception:
        logger.exception("the processes of lease %s cannot be ended; its slot stays taken until they are", name)
        return False
    if left:
        logger.error("%d process groups of lease %s survive SIGKILL; its slot stays taken", left, name)
    return not left
