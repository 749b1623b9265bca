"""A pool in this process, with the behaviour of one behind a URL: no sockets, for tests and small runs.

Guarantee: requests and answers pass through their JSON text, so nothing is shared with the environment, and what could
not travel fails here too.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from agentrl.exceptions import DeadlineError, InvalidError
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
from agentrl.service import LeaseService

M = TypeVar("M", bound=BaseModel)


class InProcessLeases:
    """Implements `agentrl.service.LeaseService` over another one; owns nothing."""

    def __init__(self, service: LeaseService) -> None:
        self._service = service

    async def lease(self, request: LeaseRequest) -> Leased:
        """See `agentrl.service.LeaseService.lease`."""
        try:
            return copied(await self._service.lease(copied(request)))
        except (asyncio.CancelledError, DeadlineError):
            await self._service.release(request.request_id)
            raise

    async def renew(self, lease_id: str, request: RenewRequest) -> Renewed:
        """See `agentrl.service.LeaseService.renew`."""
        return copied(await self._service.renew(lease_id, copied(request)))

    async def reset(self, lease_id: str, request: ResetRequest) -> Observation:
        """See `agentrl.service.LeaseService.reset`."""
        return copied(await self._service.reset(lease_id, copied(request)))

    async def step(self, lease_id: str, request: StepRequest) -> StepResult:
        """See `agentrl.service.LeaseService.step`."""
        return copied(await self._service.step(lease_id, copied(request)))

    async def evaluate(self, lease_id: str, request: EvaluateRequest) -> Verdict:
        """See `agentrl.service.LeaseService.evaluate`."""
        return copied(await self._service.evaluate(lease_id, copied(request)))

    async def release(self, lease_id: str) -> Released:
        """See `agentrl.service.LeaseService.release`."""
        return await self._service.release(lease_id)

    async def status(self) -> PoolStatus:
        """See `agentrl.service.LeaseService.status`."""
        return await self._service.status()


def copied(message: M) -> M:
    """Return what the other side of a wire would read.

    Raises:
        InvalidError: the message has no valid JSON text.
    """
    try:
        return type(message).model_validate_json(message.model_dump_json())
    except ValidationError as error:
        raise InvalidError(f"{type(message).__name__} cannot be sent: {error}", code="invalid_request") from error
