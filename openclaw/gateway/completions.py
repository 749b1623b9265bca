"""``POST /v1/chat/completions``: reads the request, sends the reply, counts how it ended.

Guarantees: every request is counted with its status, a streamed one when it ends, and with the status of the error that
it ended in. It is an ASGI application of its own: routing, validation and error handling of the framework cost more than
the rest of a short request. Owns the admission of requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from openclaw.gateway.access_log import note_reply
from openclaw.gateway.admission import Admission
from openclaw.gateway.chat import ChatService
from openclaw.gateway.client_connection import COMMENT, Connected, json_response, read_body
from openclaw.gateway.errors import CLIENT_GONE, ApiError, ClientGoneError, defect
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.gateway.reply import Reply
from openclaw.gateway.schema import parse_request
from openclaw.gateway.stream import EventStream, event

CHAT_PATH = "/v1/chat/completions"


class ChatCompletions:
    """The endpoint, as an ASGI application."""

    path = CHAT_PATH

    def __init__(self, service: ChatService) -> None:
        """Bind the endpoint."""
        self._service = service
        self._admission = Admission()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a conversation, streamed or whole."""
        scope["route"] = self
        metrics = self._service.metrics
        try:
            response = await _chat(self._service, self._admission, Request(scope, receive))
        except ApiError as error:
            count(metrics, error.status)
            response = error.response()
        except ClientGoneError:
            count(metrics, CLIENT_GONE)
            response = Response(status_code=CLIENT_GONE)
        except Exception:
            count(metrics, 500)
            await defect().response()(scope, receive, send)
            raise
        else:
            if not isinstance(response, EventStream):
                count(metrics, 200)
        await response(scope, receive, send)


async def _chat(service: ChatService, admission: Admission, request: Request) -> Response:
    body = await read_body(request, service.config.max_body_bytes)
    await admission.enter()
    chat_request, raw = parse_request(body)
    if chat_request.stream:
        starting = asyncio.ensure_future(service.start(chat_request, raw, request.headers))
        try:
            async with Connected(request.receive):
                await asyncio.wait({starting}, timeout=service.config.keepalive_seconds)
            if starting.done():
                starting.result()
        except BaseException:
            await _abandon(starting)
            raise
        return _stream(service, request, starting)
    async with Connected(request.receive):
        reply = await service.start(chat_request, raw, request.headers)
    note_reply(request.scope, reply)
    headers = _reply_headers(reply)
    try:
        async with Connected(request.receive):
            result = await service.whole(reply)
    except ClientGoneError:
        service.sessions.undelivered(reply.context, reply.capture.prompt.id)
        raise
    finally:
        reply.give_up()
    return json_response(result, {**headers, "x-weight-version": reply.capture.weight_version})


async def _abandon(starting: asyncio.Task[Reply]) -> None:
    """End a start that nobody waits for; it may have succeeded in this very moment."""
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    if not starting.cancelled() and starting.exception() is None:
        starting.result().give_up()


def _stream(service: ChatService, request: Request, starting: asyncio.Task[Reply]) -> EventStream:
    """Return the stream of a reply that has begun, or will: until then the reader gets comments."""

    async def held() -> AsyncGenerator[bytes, None]:
        yield COMMENT
        try:
            reply = await starting
        except ApiError as error:
            yield event(error.body())
            return
        note_reply(request.scope, reply)
        async with aclosing(service.events(reply)) as events:
            async for data in events:
                yield data

    def ended(status: int) -> None:
        if not starting.done():
            starting.cancel()
        elif not starting.cancelled() and (failure := starting.exception()) is not None:
            status = failure.status if isinstance(failure, ApiError) else status
        elif not starting.cancelled():
            reply = starting.result()
            reply.give_up()
            if status != 200:
                service.sessions.undelivered(reply.context, reply.capture.prompt.id)
            status = reply.error.status if reply.error else 200 if reply.recorded else status
        count(service.metrics, status)

    source, headers = held(), dict[str, str]()
    if starting.done():
        reply = starting.result()
        note_reply(request.scope, reply)
        source, headers = service.events(reply), _reply_headers(reply)
    return EventStream(source, headers, ended, keepalive_seconds=service.config.keepalive_seconds)


def _reply_headers(reply: Reply) -> dict[str, str]:
    """Return the headers of a reply; of a stream, the weight version is the one of its first tokens."""
    return {
        "x-request-id": reply.capture.prompt.id,
        "x-weight-version": reply.capture.weight_version,
        "x-turn-type": reply.context.kind,
    }


def count(metrics: GatewayMetrics, status: int) -> None:
    """Count a chat completion that is over."""
    metrics.requests.labels(code=str(status)).inc()
    if status == 503:
        metrics.refused.inc()
