"""Clients of environments: an episode with its lease kept alive, and pools behind a URL or in this process.

* `episode` leases an environment. Every operation has the next ``seq``. The lease is renewed beside the operations, at a third of
  its time, and given back at the end, also after an error. Works with any `agentrl.protocol.LeaseService`.
* `HttpLeases` is a pool or a router behind a URL. A call whose connection is cut is sent again with the same ``request_id``, so
  nothing runs twice. A call ends at its own deadline at the latest, which is longer than the server's. Errors are those that the
  server raised; a server that cannot be reached for `UNREACHABLE_S` is an `InfraError`. The cost of a call does not grow with the
  number of calls under way.
* `InProcessLeases` is a pool in this process, with the same behaviour and no sockets. Requests and answers pass through their JSON
  text, so nothing is shared with the environment, and what could not travel fails here too.

Used from one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from agentrl.exceptions import AgentError, DeadlineError, InfraError, InvalidError, NotFoundError
from agentrl.protocol import (
    CLIENT_MARGIN_S,
    CONTROL_S,
    Answer,
    EvaluateRequest,
    JsonObject,
    Leased,
    LeaseRequest,
    LeaseService,
    Observation,
    PoolStatus,
    Refusal,
    Released,
    Renewed,
    RenewRequest,
    Request,
    ResetRequest,
    StepRequest,
    StepResult,
    Verdict,
)

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
        AgentError: as `agentrl.protocol.LeaseService.lease`.
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
    """The operations of an episode; errors as in `agentrl.protocol.LeaseService`."""

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


A = TypeVar("A", bound=Answer)
FIRST_PAUSE_S = 0.1
MAX_PAUSE_SECONDS = 2.0
UNREACHABLE_S = 30.0
MAX_IDLE = 100
"""Connections that are kept for later calls."""
TIMEOUT = httpx.Timeout(None, connect=5.0)
"""The deadline of a call bounds the rest."""
HEADERS = {"content-type": "application/json"}


class HttpLeases:
    """Implements `agentrl.protocol.LeaseService`; `close` it after use."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        margin_s: float = CLIENT_MARGIN_S,
        unreachable_s: float = UNREACHABLE_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Prepare; connects on the first call.

        Args:
            url: of the server, such as ``http://127.0.0.1:30200``.
            key: of the server.
            margin_s: seconds of a call beyond the time of its operation.
            unreachable_s: seconds after which a server that accepts no connection is given up.
            transport: instead of the network.
        """
        self._url = url
        self._headers = HEADERS | ({"authorization": f"Bearer {key}"} if key else {})
        self._transport = transport
        self._tls = httpx.create_ssl_context(trust_env=False)
        self._idle: list[httpx.AsyncClient] = []
        self._closed = False
        self._margin_s = margin_s
        self._unreachable_s = unreachable_s
        self._withdrawing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections, once requests that were given up are withdrawn."""
        await asyncio.gather(*self._withdrawing)
        self._closed = True
        while self._idle:
            await self._idle.pop().aclose()

    async def lease(self, request: LeaseRequest) -> Leased:
        """See `agentrl.protocol.LeaseService.lease`."""
        try:
            return await self._post("/v1/lease", request, Leased, request.wait_s + self._margin_s)
        except (asyncio.CancelledError, DeadlineError):
            withdrawing = asyncio.create_task(self._withdraw(request.request_id), name="withdrawing")
            self._withdrawing.add(withdrawing)
            withdrawing.add_done_callback(self._withdrawing.discard)
            raise

    async def renew(self, lease_id: str, request: RenewRequest) -> Renewed:
        """See `agentrl.protocol.LeaseService.renew`."""
        return await self._post(_path(lease_id, "/renew"), request, Renewed, CONTROL_S)

    async def reset(self, lease_id: str, request: ResetRequest) -> Observation:
        """See `agentrl.protocol.LeaseService.reset`."""
        return await self._post(_path(lease_id, "/reset"), request, Observation, request.timeout_s + self._margin_s)

    async def step(self, lease_id: str, request: StepRequest) -> StepResult:
        """See `agentrl.protocol.LeaseService.step`."""
        return await self._post(_path(lease_id, "/step"), request, StepResult, request.timeout_s + self._margin_s)

    async def evaluate(self, lease_id: str, request: EvaluateRequest) -> Verdict:
        """See `agentrl.protocol.LeaseService.evaluate`."""
        return await self._post(_path(lease_id, "/evaluate"), request, Verdict, request.timeout_s + self._margin_s)

    async def release(self, lease_id: str) -> Released:
        """See `agentrl.protocol.LeaseService.release`."""
        return await self._send("DELETE", _path(lease_id), None, Released, CONTROL_S)

    async def status(self) -> PoolStatus:
        """See `agentrl.protocol.LeaseService.status`."""
        return await self._send("GET", "/v1/status", None, PoolStatus, CONTROL_S)

    async def _withdraw(self, request_id: str) -> None:
        """Withdraw a request for a lease; if that fails, the lease expires by itself."""
        try:
            await self.release(request_id)
        except AgentError as error:
            logger.warning("a request for a lease was not withdrawn: %s", error)

    async def _post(self, path: str, request: Request, kind: type[A], seconds: float) -> A:
        return await self._send("POST", path, request.model_dump_json(), kind, seconds)

    async def _send(self, method: str, path: str, body: str | None, kind: type[A], seconds: float) -> A:
        """Send a call until it is answered; its deadline covers all attempts."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        away_since: float | None = None
        pause = FIRST_PAUSE_S
        again: AgentError
        while True:
            try:
                async with asyncio.timeout_at(deadline), self._connection() as http:
                    answer = await http.request(method, path, content=body, timeout=TIMEOUT)
                return _read(answer, kind)
            except TimeoutError as error:
                raise DeadlineError(f"{method} {path}: no answer within {seconds:g} s", code="no_answer") from error
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                away_since = clock() if away_since is None else away_since
                again = self._away(error)
            except httpx.TransportError as error:
                away_since, again = None, self._away(error)
            except DeadlineError as error:
                if not error.retryable:
                    raise
                away_since, again = None, error
            latest = deadline if away_since is None else min(deadline, away_since + self._unreachable_s)
            if clock() + pause >= latest:
                raise again
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[httpx.AsyncClient]:
        """Lend a client to one call at a time; one for all would look at every connection for every call.

        Raises:
            RuntimeError: after `close`.
        """
        if self._closed:
            raise RuntimeError(f"the client of {self._url} is closed")
        http = self._idle.pop() if self._idle else self._make()
        try:
            yield http
        finally:
            if self._closed or len(self._idle) >= MAX_IDLE:
                await http.aclose()
            else:
                self._idle.append(http)

    def _make(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self._url,
            headers=self._headers,
            transport=self._transport,
            verify=self._tls,
            trust_env=False,
        )

    def _away(self, error: httpx.TransportError) -> InfraError:
        reason = str(error) or type(error).__name__
        return InfraError(
            f"{self._url} does not answer ({reason}); is the server running?",
            code="unreachable",
            retryable=True,
        )


def _path(lease_id: str, operation: str = "") -> str:
    """Return the path of a lease; an id from elsewhere cannot leave it."""
    return f"/v1/lease/{quote(lease_id, safe='')}{operation}"


def _read(answer: httpx.Response, kind: type[A]) -> A:
    """Return the answer, or raise the error that it holds."""
    try:
        if answer.is_success:
            return kind.model_validate_json(answer.content)
        raise Refusal.model_validate_json(answer.content).error.error()
    except ValidationError as error:
        raise InfraError(
            f"{answer.request.url} answered {answer.status_code} in another protocol; is it a pool?", code="no_pool"
        ) from error


M = TypeVar("M", bound=BaseModel)


class InProcessLeases:
    """Implements `agentrl.protocol.LeaseService` over another one; owns nothing."""

    def __init__(self, service: LeaseService) -> None:
        self._service = service

    async def lease(self, request: LeaseRequest) -> Leased:
        """See `agentrl.protocol.LeaseService.lease`."""
        try:
            return copied(await self._service.lease(copied(request)))
        except (asyncio.CancelledError, DeadlineError):
            await self._service.release(request.request_id)
            raise

    async def renew(self, lease_id: str, request: RenewRequest) -> Renewed:
        """See `agentrl.protocol.LeaseService.renew`."""
        return copied(await self._service.renew(lease_id, copied(request)))

    async def reset(self, lease_id: str, request: ResetRequest) -> Observation:
        """See `agentrl.protocol.LeaseService.reset`."""
        return copied(await self._service.reset(lease_id, copied(request)))

    async def step(self, lease_id: str, request: StepRequest) -> StepResult:
        """See `agentrl.protocol.LeaseService.step`."""
        return copied(await self._service.step(lease_id, copied(request)))

    async def evaluate(self, lease_id: str, request: EvaluateRequest) -> Verdict:
        """See `agentrl.protocol.LeaseService.evaluate`."""
        return copied(await self._service.evaluate(lease_id, copied(request)))

    async def release(self, lease_id: str) -> Released:
        """See `agentrl.protocol.LeaseService.release`."""
        return await self._service.release(lease_id)

    async def status(self) -> PoolStatus:
        """See `agentrl.protocol.LeaseService.status`."""
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
