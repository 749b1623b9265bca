"""``POST /v1/chat/completions``: reads the request, sends the reply, counts the outcome.

Guarantees: every request is counted with its status. A streamed request is counted at its end, with the status of its
error if it had one. This is an ASGI application of its own, because the framework's routing, validation and error
handling cost more than the rest of a short request. Owns the admission of requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, suppress

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from openclaw.config.bounds import LARGE_BODY
from openclaw.gateway.access_log import client_of, note_reply
from openclaw.gateway.admission import Admission
from openclaw.gateway.bodies import take_body
from openclaw.gateway.chat import UNLIKE, ChatService
from openclaw.gateway.client_connection import COMMENT, Connected, json_response
from openclaw.gateway.errors import CLIENT_GONE, ApiError, ClientGoneError, defect, stopping
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.gateway.reply import Reply
from openclaw.gateway.schema import parse_request
from openclaw.gateway.stream import EventStream, event

CHAT_PATH = "/v1/chat/completions"


class ChatCompletions:
    """The endpoint, as an ASGI application."""

    path = CHAT_PATH

    def __init__(self, service: ChatService) -> None:
        """Create the endpoint for ``service``."""
        self._service = service
        self._admission = Admission()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a conversation, streamed or whole."""
        scope["route"] = self
        metrics = self._service.metrics
        async with AsyncExitStack() as until_sent:
            until_sent.enter_context(suppress(ClientGoneError))
            try:
                response = await _chat(self._service, self._admission, Request(scope, receive), until_sent)
            except ApiError as error:
                count(metrics, error.status)
                response = error.response()
            except ClientGoneError:
                count(metrics, CLIENT_GONE)
                response = Response(status_code=CLIENT_GONE)
            except asyncio.CancelledError:  # the time that the server gives its last requests is over
                count(metrics, 503)
                response = stopping().response()
            except Exception:
                count(metrics, 500)
                await defect().response()(scope, receive, send)
                raise
            else:
                if not isinstance(response, EventStream):
                    count(metrics, 200)
            await response(scope, receive, send)


async def _chat(service: ChatService, admission: Admission, request: Request, until_sent: AsyncExitStack) -> Response:
    """Return the response; a streamed reply lives until ``until_sent`` exits."""
    body = take_body(request.scope)
    if len(body) > LARGE_BODY.most:
        body = await service.large_bodies.slim(body)
    await admission.enter()
    chat_request, raw = parse_request(body, service.config.context_length)
    del body
    client = client_of(request.scope)
    reply = service.reply(chat_request, raw, request.headers, client.owner)
    reply.client = client.name
    if chat_request.stream:
        return await _stream(service, request, await until_sent.enter_async_context(reply))
    async with reply:
        async with Connected(request.receive):
            await reply.begun()
        note_reply(request.scope, reply)
        headers = _reply_headers(reply)
        async with Connected(request.receive):
            result = await service.whole(reply)
    return json_response(result, {**headers, "x-weight-version": reply.capture.weight_version})


async def _stream(service: ChatService, request: Request, reply: Reply) -> EventStream:
    """Return the stream of a reply; before its first token the client gets keep-alive comments."""

    async def late() -> AsyncGenerator[bytes, None]:
        yield COMMENT
        try:
            await reply.begun()
        except ApiError as error:
            yield event(error.body())
            return
        note_reply(request.scope, reply)
        async with aclosing(service.events(reply)) as events:
            async for data in events:
                yield data

    def ended(status: int) -> None:
        count(service.metrics, reply.error.status if reply.error else 200 if reply.recorded else status)

    async with Connected(request.receive):
        begun = await reply.begun(within=service.config.keepalive_seconds)
    source, headers = late(), dict[str, str]()
    if begun:
        note_reply(request.scope, reply)
        source, headers = service.events(reply), _reply_headers(reply)
    return EventStream(source, headers, ended, keepalive_seconds=service.config.keepalive_seconds)


def _reply_headers(reply: Reply) -> dict[str, str]:
    """Return the headers of a reply; a stream reports the weight version of its first tokens."""
    headers = {
        "x-request-id": reply.id,
        "x-weight-version": reply.capture.weight_version,
        "x-turn-type": reply.context.kind,
    }
    return headers | ({"x-warning": UNLIKE} if reply.context.unlike else {})


def count(metrics: GatewayMetrics, status: int) -> None:
    """Count a finished chat completion."""
    metrics.requests.labels(code=str(status)).inc()
    if status == 503:
        metrics.refused.inc()
