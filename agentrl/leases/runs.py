"""An operation that runs once while any number of callers wait for it.

Guarantees: a caller that leaves does not end the operation. Every caller gets the same answer, or an error of its own
that says the same. An operation never raises: its task returns an answer or an error.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from agentrl.exceptions import AgentError, DeadlineError

T = TypeVar("T")
Outcome = T | AgentError


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
