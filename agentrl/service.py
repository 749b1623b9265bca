"""What a pool of environments offers, wherever it runs.

The pool itself, a router over several pools, the HTTP client and the in-process client implement it with the same
guarantees, so code above them does not know which one it has. All raise `agentrl.exceptions.AgentError`.
"""

from __future__ import annotations

from typing import Protocol

from agentrl.protocol import (
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


class LeaseService(Protocol):
    """Leases of environments."""

    async def lease(self, request: LeaseRequest) -> Leased:
        """Grant a lease, first come, first served; the same ``request_id`` gets the same lease.

        A client whose call is cancelled, or gives up, withdraws the request.

        Raises:
            CapacityError: nothing became free within ``wait_s``, or the task never fits.
            NotFoundError: no such task.
            InfraError: the pool is shutting down, or the environment cannot be made.
        """
        ...

    async def renew(self, lease_id: str, request: RenewRequest) -> Renewed:
        """Keep a lease; waits for no operation.

        Raises:
            NotFoundError: no such lease, or it has expired.
        """
        ...

    async def reset(self, lease_id: str, request: ResetRequest) -> Observation:
        """Start the task from the beginning; errors as in `step`."""
        ...

    async def step(self, lease_id: str, request: StepRequest) -> StepResult:
        """Act once; a repeated request gets the stored answer.

        Raises:
            InvalidError: the ``seq`` is neither the next nor the last one, or the action is wrong.
            NotFoundError: no such lease; it may have been released while the operation ran.
            DeadlineError: the operation took longer than ``timeout_s``; if retryable, it still runs.
            InfraError, InternalError: the environment failed; the lease is good for `evaluate` only.
        """
        ...

    async def evaluate(self, lease_id: str, request: EvaluateRequest) -> Verdict:
        """Judge the episode once and end it; an environment that failed gets a verdict without a score.

        Raises:
            InvalidError: the task was never reset.
            NotFoundError: no such lease.
            DeadlineError: the evaluation still runs; a retry waits for it.
        """
        ...

    async def release(self, lease_id: str) -> Released:
        """Give a lease back and stop what runs; returns at once, and closes the environment afterwards.

        Also takes the ``request_id`` of a lease that is still waited for, and withdraws the request.
        """
        ...

    async def status(self) -> PoolStatus:
        """Return the load; waits for no lease."""
        ...
