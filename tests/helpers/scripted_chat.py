"""A server with OpenAI's chat completions that answers by a script, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lab.testkit.engine import serve


def said(text: str) -> dict[str, Any]:
    """Return a message of words."""
    return {"role": "assistant", "content": text}


def called(name: str, **arguments: Any) -> dict[str, Any]:
    """Return a message that calls a tool."""
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def whole(message: dict[str, Any]) -> Response:
    """Return a complete reply."""
    reason = "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return JSONResponse({**body, "usage": usage})


def refused(status: int, code: str = "refused", kind: str = "invalid_request_error") -> Response:
    """Return an error in OpenAI's shape."""
    return JSONResponse({"error": {"message": "no", "type": kind, "param": None, "code": code}}, status)


def streamed(*events: str, breaks: bool = False) -> Response:
    """Return a stream of events; ``breaks``: the connection is cut after them."""

    async def pieces() -> AsyncIterator[bytes]:
        for each in events:
            yield f"data: {each}\n\n".encode()
        if breaks:
            raise ConnectionError("cut by the test")

    return StreamingResponse(pieces(), media_type="text/event-stream")


Answer = dict[str, Any] | Response | None


@dataclass
class ScriptedChat:
    """What was asked, in order, and what is answered: ``answer`` gets the number of the request, from 0, and its body.

    A message is a complete reply, and None waits for ``gate`` without an answer. ``healths`` are what ``/healthz`` answers,
    in order and the last one again; None waits, too.
    """

    answer: Callable[[int, dict[str, Any]], Answer]
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    healths: list[Any] = field(default_factory=lambda: [{"engine_away_seconds": 0.0}])

    async def __call__(self, request: Request) -> Response:
        """Answer a chat completion."""
        body = json.loads(await request.body())
        number = len(self.asked)
        self.asked.append(body)
        self.keys.append(request.headers.get("authorization", ""))
        answer = self.answer(number, body)
        if answer is None:
            await self.gate.wait()
            answer = refused(503, "over", "server_error")
        return answer if isinstance(answer, Response) else whole(answer)

    async def health(self, request: Request) -> Response:
        """Answer as a gateway does that is asked how it is."""
        told = self.healths.pop(0) if len(self.healths) > 1 else self.healths[0]
        if told is None:
            await self.gate.wait()
        return told if isinstance(told, Response) else JSONResponse(told)


@asynccontextmanager
async def scripted_chat(
    answer: Callable[[int, dict[str, Any]], Answer] | Sequence[Answer],
) -> AsyncIterator[ScriptedChat]:
    """Serve a script; the last answer of a list is repeated."""
    script = answer if callable(answer) else (lambda number, body: answer[min(number, len(answer) - 1)])
    chat = ScriptedChat(script)
    routes = [Route("/v1/chat/completions", chat.__call__, methods=["POST"]), Route("/healthz", chat.health)]
    async with serve(Starlette(routes=routes)) as chat.url:
        try:
            yield chat
        finally:
            chat.gate.set()


async def _main(command: str) -> None:
    """Say the address, answer the first request with a command and no later one, and say when one has come; to be killed."""

    def answer(number: int, body: dict[str, Any]) -> Answer:
        if number == 0:
            return called("bash", command=command)
        print("asked again", flush=True)
        return None

    async with scripted_chat(answer) as chat:
        print(chat.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
