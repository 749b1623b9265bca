"""A pool whose environments follow a script, with a clock that a test sets, and what a test asks it for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from agentrl.client.episode import new_request_id
from agentrl.leases.lease import CloseTimeouts
from agentrl.leases.pool import Pool
from agentrl.processes import ProcessLedger
from agentrl.protocol import EvaluateRequest, LeaseRequest, RenewRequest, ResetRequest, StepRequest
from agentrl.service import LeaseService
from lab.testkit.agent_environments import Script

QUICK = CloseTimeouts(close_s=5.0, cancel_grace_s=0.3, retry_s=0.01, longest_retry_s=0.02)
PATIENT_S = 20.0
ADDRESS = "http://127.0.0.1"


async def until(condition: Callable[[], Any]) -> None:
    """Wait for a condition; a busy machine may take its time."""
    async with asyncio.timeout(PATIENT_S):
        while not condition():
            await asyncio.sleep(0.002)


def asked(task_id: str = "plain", **settings: Any) -> LeaseRequest:
    return LeaseRequest(request_id=new_request_id(), task_id=task_id, **settings)


def resetting(seq: int = 1, **settings: Any) -> ResetRequest:
    return ResetRequest(request_id=new_request_id(), seq=seq, **settings)


def acting(seq: int, do: str, **settings: Any) -> StepRequest:
    return StepRequest(request_id=new_request_id(), seq=seq, action={"do": do}, **settings)


def judging(**settings: Any) -> EvaluateRequest:
    return EvaluateRequest(request_id=new_request_id(), **settings)


def renewing(ttl_s: float) -> RenewRequest:
    return RenewRequest(request_id=new_request_id(), ttl_s=ttl_s)


class Clock:
    """A clock that stands still unless a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class CutTransport(httpx.AsyncBaseTransport):
    """Cuts connections: ``before`` or ``after`` the server carries the request out, in this order, then no more."""

    inner: httpx.AsyncBaseTransport
    cuts: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        cut = self.cuts.pop(0) if self.cuts else ""
        self.seen.append(f"{request.method} {request.url.path.rsplit('/', 1)[-1]}")
        if cut == "refused":
            raise httpx.ConnectError("refused")
        if cut == "before":
            raise httpx.WriteError("cut before")
        response = await self.inner.handle_async_request(request)
        if cut == "after":
            await response.aread()
            raise httpx.ReadError("cut after")
        return response


@dataclass
class World:
    """A started pool, and what surrounds it."""

    pool: Pool
    script: Script
    clock: Clock
    registry: CollectorRegistry
    ledger: ProcessLedger
    client: LeaseService
    transport: CutTransport

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    async def leased(self, **settings: Any) -> str:
        """Return the id of a new lease whose task was reset."""
        lease = await self.client.lease(asked(**settings))
        await self.client.reset(lease.lease_id, resetting())
        return lease.lease_id


Build = Callable[..., Coroutine[Any, Any, World]]
