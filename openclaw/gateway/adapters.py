"""A person's own adapter at the gateway: what serves, going back, accepting, leaving with it, and being forgotten.

``GET /v1/me/adapter``, ``POST /v1/me/adapter/rollback``, ``POST /v1/me/adapter/accept``, ``GET /v1/me/adapter/export``,
``DELETE /v1/me``: about the person of the key alone, an admin's key included. A child key gets a 403, because what its parent's
conversations have taught is not its own; so does the key of an episode (`openclaw.gateway.guard`).

Guarantees: an answer holds nothing of another person, and no path of the server. A server whose people share their weights
answers 404, except that it forgets. What is asked for is done by the run, and survives the end of this process. Stateless; the
run's adapters come from `openclaw.runtime.adapters`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import StreamingResponse

from openclaw.config.bounds import LESSON_BODY
from openclaw.gateway.auth import Client
from openclaw.gateway.chat import ChatService
from openclaw.gateway.errors import ApiError, disk_full
from openclaw.gateway.guard import client_of
from openclaw.gateway.lessons import ME_PATH
from openclaw.gateway.limits import parse_body, take_body
from openclaw.gateway.own_adapters import NotPossibleError, OwnAdapters
from openclaw.gateway.stream import json_response
from openclaw.ledger.exceptions import LedgerFullError
from openclaw.ledger.sessions import Forgotten
from openclaw.owners import root

ADAPTER_PATH = f"{ME_PATH}/adapter"
ROLLBACK_PATH, ACCEPT_PATH, EXPORT_PATH = (f"{ADAPTER_PATH}/{name}" for name in ("rollback", "accept", "export"))
TAR = "application/x-tar"
Result = TypeVar("Result")


class RollbackRequest(BaseModel):
    """The body that asks for an earlier version."""

    model_config = ConfigDict(extra="forbid", strict=True)

    to: Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,17})$")]


def person_of(client: Client) -> str:
    """Return the person of a key.

    Raises:
        ApiError: 403 for a child key.
    """
    person = root(client.owner)
    if client.owner != person:
        raise ApiError(
            403, "a child key does not decide about its parent's adapter; send the parent's key", code="child_key"
        )
    return person


async def _call(work: Callable[[], Result]) -> Result:
    """Return the result of ``work`` in a thread.

    Raises:
        ApiError: 409 for what is not possible.
    """
    try:
        return await asyncio.to_thread(work)
    except NotPossibleError as error:
        raise ApiError(409, str(error), code="not_possible") from error


class AdapterDesk:
    """Answers for people's own adapters; every method raises ApiError: 403 for a child key, 404 where people share their weights."""

    def __init__(self, service: ChatService, adapters: OwnAdapters | None) -> None:
        """Answer for ``adapters``; None if people share their weights."""
        self._service = service
        self._adapters = adapters

    def _own(self, client: Client) -> tuple[str, OwnAdapters]:
        person = person_of(client)
        if self._adapters is None:
            raise ApiError(
                404,
                "people share the weights of this server; its operator can set ADAPTERS=per-owner",
                code="no_own_adapter",
            )
        return person, self._adapters

    async def versions(self, client: Client) -> dict[str, Any]:
        """Return the versions of the client's own adapter, which serves, and what the gate decided."""
        person, run = self._own(client)
        return await _call(lambda: run.versions(person))

    async def roll_back(self, body: bytes, client: Client) -> dict[str, Any]:
        """Ask for the version in a body; the run goes back within seconds, after its step."""
        person, run = self._own(client)
        version = parse_body(RollbackRequest, body, LESSON_BODY).to
        await _call(lambda: run.ask_rollback(person, version))
        return {"object": "adapter.rollback", "to": version, "asked": True}

    async def accept(self, client: Client) -> dict[str, Any]:
        """Accept the change of opinion for which the gate refused updates."""
        person, run = self._own(client)
        return {"object": "adapter.accept", "samples": await _call(lambda: run.accept(person))}

    async def export(self, client: Client) -> Response:
        """Return the version that serves, as a tar of PEFT's two files."""
        person, run = self._own(client)
        found = await _call(lambda: run.export(person))
        headers = {
            "content-disposition": f'attachment; filename="adapter-{found.version}.tar"',
            "x-weight-version": found.version,
            "x-adapter-sha256": found.sha256,
        }
        return StreamingResponse(found.chunks, headers=headers, media_type=TAR)

    async def forget(self, client: Client) -> dict[str, Any]:
        """Delete all of the client's person; ``erased`` is false while another reader keeps old bytes on disk.

        Raises:
            ApiError: 507 if the disk is full, 409 if the run's adapters cannot be read.
        """
        person = person_of(client)
        had: list[bool] = []

        def with_adapter(adapters: OwnAdapters) -> Forgotten:
            gone, adapter = adapters.forget(person)
            had.append(adapter)
            return gone

        earlier = self._service.earlier
        try:
            rest = None if self._adapters is None else partial(with_adapter, self._adapters)
            async with nullcontext() if earlier is None else earlier.forgetting():
                gone = await self._service.sessions.forget_person(person, rest)
        except LedgerFullError as error:
            raise disk_full(error) from error
        except NotPossibleError as error:
            raise ApiError(409, str(error), code="not_possible") from error
        self._service.lessons.forget(person)
        body = {"object": "person", "deleted": True, **asdict(gone), "adapter": any(had)}
        return {**body, "erased": await self._service.sessions.erase()}


def add_adapter_routes(app: FastAPI, desk: AdapterDesk) -> None:
    """Add the routes."""

    @app.get(ADAPTER_PATH)
    async def adapter(request: Request) -> Response:
        """Return the versions of the client's own adapter, which serves, and what the gate decided."""
        return json_response(await desk.versions(client_of(request.scope)))

    @app.post(ROLLBACK_PATH)
    async def rollback(request: Request) -> Response:
        """Ask for an earlier version of the client's own adapter; the run goes back within seconds, after its step."""
        return json_response(await desk.roll_back(take_body(request.scope), client_of(request.scope)))

    @app.post(ACCEPT_PATH)
    async def accept(request: Request) -> Response:
        """Accept the change of opinion for which the gate refused updates of the client's own adapter; needs no body."""
        return json_response(await desk.accept(client_of(request.scope)))

    @app.get(EXPORT_PATH)
    async def export(request: Request) -> Response:
        """Return the version of the client's own adapter that serves, as a tar of PEFT's two files."""
        return await desk.export(client_of(request.scope))

    @app.delete(ME_PATH)
    async def forget_me(request: Request) -> Response:
        """Delete all data of the client's person: conversations, lessons, and an adapter of their own in all versions."""
        return json_response(await desk.forget(client_of(request.scope)))
