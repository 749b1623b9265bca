"""One episode: a lease that is renewed while the episode lasts, and its operations in order.

Guarantees: every operation has the next ``seq``. The lease is renewed beside the operations, at a third of its time, and
given back at the end, also after an error. Used from one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from agentrl.exceptions import AgentError, InvalidError, NotFoundError
from agentrl.protocol import (
    EvaluateRequest,
    JsonObject,
    LeaseRequest,
    Observation,
    RenewRequest,
    ResetRequest,
    StepRequest,
    StepResult,
    Verdict,
)
from agentrl.service import LeaseService

logger = logging.getLogger(__name__)
RENEWALS_PER_TTL = 3


def new_request_id() -> str:
    """Return an id for a new request; a retry keeps it."""
    return secrets.token_hex(16)


@asynccontextmanager
async def episode(
    service: LeaseService, task_id: str, *, ttl_s: float = 60.0, wait_s: float = 60.0, close_s: float = 60.0
) -> AsyncIterator[Episode]:
    """Lease an environment for a task, keep the lease within the block, and give it back.

    Args:
        service: that lends environments.
        task_id: of the server's registry.
        ttl_s: seconds for which the server keeps the environment if this process dies.
        wait_s: seconds to wait in the queue.
        close_s: seconds to wait until the server takes the lease back.

    Raises:
        AgentError: as `agentrl.service.LeaseService.lease`.
    """
    request = LeaseRequest(request_id=new_request_id(), task_id=task_id, ttl_s=ttl_s, wait_s=wait_s)
    leased = await service.lease(request)
    renewing = asyncio.create_task(_renew(service, leased.lease_id, ttl_s), name=f"renewing {leased.lease_id}")
    try:
        yield Episode(service, leased.lease_id)
    finally:
        renewing.cancel()
        try:
            async with asyncio.timeout(close_s):
                await service.release(leased.lease_id)
        except (AgentError, TimeoutError) as error:
            logger.warning("lease %s was not given back (%s); it expires in %g s", leased.lease_id, error, ttl_s)


class Episode:
    """The operations of an episode; errors as in `agentrl.service.LeaseService`."""

    def __init__(self, service: LeaseService, lease_id: str) -> None:
        self.lease_id = lease_id
        self._service = service
        self._seq = 0

    async def reset(self, seed: int = 0, *, timeout_s: float = 120.0) -> Observation:
        """Start the task from the beginning, within ``timeout_s`` seconds."""
        request = ResetRequest(request_id=new_request_id(), seq=self._seq + 1, seed=seed, timeout_s=timeout_s)
        with self._counted():
            return await self._service.reset(self.lease_id, request)

    async def step(self, action: JsonObject, *, timeout_s: float = 120.0) -> StepResult:
        """Act once, within ``timeout_s`` seconds."""
        request = StepRequest(request_id=new_request_id(), seq=self._seq + 1, action=action, timeout_s=timeout_s)
        with self._counted():
            return await self._service.step(self.lease_id, request)

    async def evaluate(self, *, timeout_s: float = 600.0) -> Verdict:
        """Return the verdict of the episode, within ``timeout_s`` seconds."""
        request = EvaluateRequest(request_id=new_request_id(), timeout_s=timeout_s)
        return await self._service.evaluate(self.lease_id, request)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count an operation, unless the server refused it before it took its ``seq``."""
        self._seq += 1
        try:
            yield
        except InvalidError as error:
            if not error.executed:
                self._seq -= 1
            raise


async def _renew(service: LeaseService, lease_id: str, ttl_s: float) -> None:
    """Renew a lease until it is gone; a renewal that fails is tried again."""
    while True:
        await asyncio.sleep(ttl_s / RENEWALS_PER_TTL)
        try:
            await service.renew(lease_id, RenewRequest(request_id=new_request_id(), ttl_s=ttl_s))
        except NotFoundError:
            return
        except AgentError as error:
            logger.warning("lease %s was not renewed: %s", lease_id, error)
