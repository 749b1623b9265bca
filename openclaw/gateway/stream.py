"""Replies in OpenAI's wire format: one JSON object, or server-sent events.

Guarantees: each delta leaves as soon as it is known; every stream that a client reads to its end closes with
``data: [DONE]``, one that broke off closes with an ``error`` event instead. When the client goes away the source is
closed at once, and the end of every stream is told to its owner once. `EventStream` owns the sending of one reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from openclaw.gateway.parsers.deltas import Content, Delta, Reasoning, ToolCallArguments, ToolCallStart

DONE = b"data: [DONE]\n\n"
CLIENT_GONE = 499
T = TypeVar("T")


class ClientGoneError(Exception):
    """The client closed the connection before it was answered."""


def event(value: dict[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


class ChunkWriter:
    """Writes the chunks of one streamed reply."""

    def __init__(self, completion_id: str, model: str, created: int, *, include_usage: bool) -> None:
        self._head = {"id": completion_id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._include_usage = include_usage

    def role(self) -> bytes:
        """Return the first chunk, which says who speaks."""
        return self._chunk({"role": "assistant", "content": ""})

    def delta(self, delta: Delta) -> bytes:
        """Return the chunk of one delta."""
        match delta:
            case Content(text):
                return self._chunk({"content": text})
            case Reasoning(text):
                return self._chunk({"reasoning_content": text})
            case ToolCallStart(index, id_, name):
                call = {"index": index, "id": id_, "type": "function", "function": {"name": name, "arguments": ""}}
                return self._chunk({"tool_calls": [call]})
            case ToolCallArguments(index, text):
                return self._chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]})

    def finish(self, reason: str) -> bytes:
        """Return the chunk that says why the reply ended."""
        return self._chunk({}, reason)

    def usage(self, usage: dict[str, Any]) -> bytes:
        """Return the chunk with the usage, or nothing when the client did not ask for it."""
        return event({**self._head, "choices": [], "usage": usage}) if self._include_usage else b""

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        value = {
            **self._head,
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}],
        }
        if self._include_usage:
            value["usage"] = None
        return event(value)


def completion(
    completion_id: str, model: str, created: int, message: dict[str, Any], reason: str, usage: dict[str, Any]
) -> dict[str, Any]:
    """Return a whole reply."""
    return {
        "id": completion_id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
        "usage": usage,
    }


class EventStream(Response):
    """Sends the events of ``source`` until it ends or the client goes away."""

    media_type = "text/event-stream"

    def __init__(
        self, source: AsyncGenerator[bytes, None], headers: dict[str, str], on_end: Callable[[int], None]
    ) -> None:
        """Bind the response.

        Args:
            source: the events.
            headers: of the response.
            on_end: called once when sending is over, even when ``source`` was never asked for anything, with 200 when
                everything was sent, 499 when the client went away and 500 when sending failed.
        """
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._source = source
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the response."""
        status = CLIENT_GONE
        try:
            async with aclosing(self._source) as source:
                if await run_until_gone(receive, self._send(source, send)):
                    status = 200
        except OSError:
            raise
        except Exception:
            status = 500
            raise
        finally:
            self._on_end(status)

    async def _send(self, source: AsyncGenerator[bytes, None], send: Send) -> bool:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in source:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return True


async def run_until_gone(receive: Receive, work: Awaitable[T]) -> T | None:
    """Return what ``work`` returns, or None, with the work cancelled, when the client goes away first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_until_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return None
    finally:
        for future in (task, gone):
            future.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def answer_or_gone(request: Request, work: Awaitable[T]) -> T:
    """Return what ``work`` returns.

    Raises:
        ClientGoneError: when the client goes away first.
    """
    result = await run_until_gone(request.receive, _boxed(work))
    if result is None:
        raise ClientGoneError
    return result[0]


async def _boxed(work: Awaitable[T]) -> tuple[T]:
    return (await work,)


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
