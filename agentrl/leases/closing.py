"""Close an environment until it is closed.

Guarantees: returns only when `Environment.close` has returned, and all processes and blocking calls of the lease are gone.
Until then every attempt that raises, hangs or leaves some is counted and logged, and closing is tried again, at growing intervals. A
`close` that hangs and ignores its cancellation is waited for, never called a second time beside itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.deadlines import CANCEL_GRACE_S, awaited, ended_in_time
from agentrl.environment import Environment
from agentrl.leases.metrics import PoolMetrics
from agentrl.processes.owned import Processes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds for one attempt to close, for a cancelled call to end, and before the first and any later retry."""

    close_s: float = 30.0
    cancel_grace_s: float = CANCEL_GRACE_S
    retry_s: float = 1.0
    longest_retry_s: float = 60.0


PATIENCE = Patience()


async def close(
    name: str,
    environment: Environment,
    processes: Processes,
    running: Sequence[asyncio.Task[Any]],
    *,
    patience: Patience,
    metrics: PoolMetrics,
    on_stuck: Callable[[], None],
) -> None:
    """Close an environment, once what runs in it has been cancelled.

    Args:
        name: of the lease, for the log.
        environment: to close.
        processes: of the environment.
        running: cancelled operations.
        patience: bounds.
        metrics: counts the failures.
        on_stuck: called after the first attempt that failed.
    """
    if running:
        await asyncio.wait(running, timeout=2 * patience.cancel_grace_s)
    pause = patience.retry_s
    closing: asyncio.Task[None] | None = None
    closed = False
    while True:
        reason = None
        if not closed:
            if closing is None:
                closing = asyncio.create_task(awaited(environment.close), name=f"close of {name}")
            in_time = await ended_in_time(closing, patience.close_s, patience.cancel_grace_s)
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
        pause = min(2 * pause, patience.longest_retry_s)


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
