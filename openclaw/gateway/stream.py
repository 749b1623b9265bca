"""Answers on the wire: JSON, server-sent events in OpenAI's format, keep-alive comments, disconnects.

Guarantees: each delta is sent as soon as it is known. A complete stream ends with ``data: [DONE]``, a failed one with an
``error`` event. Work is cancelled as soon as its client closes the connection, and only then; one task watches, and the
work itself runs without a task of its own. The owner learns the end of every stream exactly once. Keep-alive comments,
also before the first token, prevent idle time-outs between engine and client. `EventStream` owns the sending of one reply.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Protocol

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from chat_codec.reply_parser import Content, Delta, Reasoning, ToolCallArguments, ToolCallStart
from openclaw.gateway.capture import Capture, Step
from openclaw.gateway.errors import CLIENT_GONE, ClientGoneError, stopping

LESSONS_HEADER = "x-openclaw-lessons"
"""Of a request: ``on`` or ``off``; of an answer: how many lessons its prompt had."""
COMMENT = b": keep-alive\n\n"


def json_response(value: object, headers: dict[str, str] | None = None) -> Response:
    """Return an answer with a JSON body."""
    return Response(orjson.dumps(value), headers=headers, media_type="application/json")


class Connected:
    """``async with Connected(receive)``: cancel the block with `ClientGoneError` when the client disconnects."""

    def __init__(self, receive: Receive) -> None:
        """Watch an ASGI request whose body has been read."""
        self._receive = receive
        self._over = self._gone = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._watch = asyncio.ensure_future(_wait_until_gone(self._receive))
        self._watch.add_done_callback(self._on_gone)

    def _on_gone(self, watch: asyncio.Task[None]) -> None:
        if not self._over and not watch.cancelled():
            self._gone = True
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over = True
        self._watch.cancel()
        if self._gone and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise ClientGoneError from error


class Comments:
    """Sends a keep-alive comment after each silence of a stream; set ``sent_at`` on every other send."""

    def __init__(self, send: Send, seconds: float) -> None:
        """Start now; send a comment after ``seconds`` of silence."""
        self.sent_at = time.monotonic()
        self._send = send
        self._seconds = seconds
        self._sending: asyncio.Future[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        left = self.sent_at + self._seconds - time.monotonic()
        if left <= 0:
            left, self.sent_at = self._seconds, time.monotonic()
            if self._sending is None or self._sending.done():
                message = {"type": "http.response.body", "body": COMMENT, "more_body": True}
                self._sending = asyncio.ensure_future(self._send(message))
        self._timer = asyncio.get_running_loop().call_later(left, self._look)

    async def stop(self) -> None:
        """Stop sending comments."""
        self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


DONE = b"data: [DONE]\n\n"


def event(value: dict[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


class Writer(Protocol):
    """Writes the events of one streamed request."""

    def step(self, step: Step) -> bytes:
        """Return the events of a choice's next step."""
        ...

    def finish(self, index: int, reason: str) -> bytes:
        """Return the event with a choice's finish reason."""
        ...

    def usage(self, usage: dict[str, Any]) -> bytes:
        """Return the event with the usage, or nothing if the client did not ask for it."""
        ...


class ChunkWriter(Writer):
    """Writes the chunks of one streamed request, each with the ``index`` of its choice."""

    def __init__(self, head: Mapping[str, Any], *, logprobs: bool = False, include_usage: bool = False) -> None:
        """Start a stream.

        Args:
            head: the fields of every chunk, see `Form.head`.
            logprobs: whether the client asked for log-probabilities.
            include_usage: whether it asked for the usage.
        """
        self._head = {**head, "object": "chat.completion.chunk"}
        self._begin = b"data: " + orjson.dumps(self._head)[:-1] + b',"choices":['
        self._end = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._logprobs = logprobs
        self._include_usage = include_usage
        self._spoken: set[int] = set()

    def step(self, step: Step) -> bytes:
        """Return the chunks of a choice's next step; the first chunk has the role."""
        entries = step.logprobs
        data = b""
        if step.index not in self._spoken:
            self._spoken.add(step.index)
            data = self._chunk(step.index, {"role": "assistant", "content": ""})
        for delta in step.deltas:
            data += self._chunk(step.index, _delta_fields(delta), logprobs=entries)
            entries = []
        if entries:
            data += self._chunk(step.index, {"content": ""}, logprobs=entries)
        return data

    def finish(self, index: int, reason: str) -> bytes:
        """Return the chunk with a choice's finish reason."""
        return self._chunk(index, {}, reason)

    def usage(self, usage: dict[str, Any]) -> bytes:
        """Return the chunk with the usage, or nothing if the client did not ask for it."""
        return event({**self._head, "choices": [], "usage": usage}) if self._include_usage else b""

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        finish_reason: str | None = None,
        logprobs: Sequence[dict[str, Any]] = (),
    ) -> bytes:
        numbers = _logprobs_field(logprobs) if self._logprobs and logprobs else None
        part = {"index": index, "delta": delta, "logprobs": numbers, "finish_reason": finish_reason}
        return self._begin + orjson.dumps(part) + self._end


class Form:
    """The form of the answers to one request: here that of chat completions."""

    def head(self, completion_id: str, model: str, created: float, weight_version: str) -> dict[str, Any]:
        """Return the fields of every answer to one request; ``system_fingerprint`` names the weights."""
        return {
            "id": completion_id,
            "object": "chat.completion",
            "created": int(created),
            "model": model,
            "system_fingerprint": f"weights-{weight_version}",
        }

    def choice(self, capture: Capture) -> dict[str, Any]:
        """Return one choice of a whole reply."""
        return {
            "index": capture.index,
            "message": capture.builder.message(),
            "logprobs": None if capture.entries is None else _logprobs_field(capture.content_logprobs),
            "finish_reason": capture.finish_reason or "stop",
        }

    def writer(self, head: Mapping[str, Any], *, logprobs: bool, include_usage: bool) -> Writer:
        """Return the writer of a stream's events."""
        return ChunkWriter(head, logprobs=logprobs, include_usage=include_usage)


CHAT = Form()


def _logprobs_field(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"content": list(entries), "refusal": None}


def _delta_fields(delta: Delta) -> dict[str, Any]:
    match delta:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case ToolCallStart(index, id_, name):
            call = {"index": index, "id": id_, "type": "function", "function": {"name": name, "arguments": ""}}
            return {"tool_calls": [call]}
        case ToolCallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


class EventStream(Response):
    """Sends the events of ``source`` until it ends or the client disconnects."""

    media_type = "text/event-stream"

    def __init__(
        self,
        source: AsyncGenerator[bytes, None],
        headers: dict[str, str],
        on_end: Callable[[int], None],
        *,
        keepalive_seconds: float,
    ) -> None:
        """Create the response.

        Args:
            source: the events.
            headers: of the response.
            keepalive_seconds: silence after which a comment is sent.
            on_end: called once at the end, even if ``source`` was never read: with 200 if everything was sent, 499 if the
            client disconnected, 500 if sending failed, 503 if the server ended first.
        """
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._source = source
        self._on_end = on_end
        self._keepalive_seconds = keepalive_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the response.

        Raises:
            ClientGoneError: if the client disconnects.
        """
        status = CLIENT_GONE
        try:
            async with aclosing(self._source) as source:
                await self._send(source, receive, send)
            status = 200
        except (ClientGoneError, OSError):
            raise
        except asyncio.CancelledError:  # the time that the server gives its last requests is over
            status = 503
            await send({"type": "http.response.body", "body": event(stopping().body()), "more_body": False})
        except Exception:
            status = 500
            raise
        finally:
            self._on_end(status)

    async def _send(self, source: AsyncGenerator[bytes, None], receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        comments = Comments(send, self._keepalive_seconds)
        try:
            async with Connected(receive):
                async for data in source:
                    comments.sent_at = time.monotonic()
                    await send({"type": "http.response.body", "body": data, "more_body": True})
        finally:
            await comments.stop()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
