"""What an agent program really asks on a task, while a stand-in for the model answers by a script.

Guarantees: the program runs as it does in training, in the sandbox of `agentrl.harness.environment`; only the model is another.
Nothing outlives the call.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from agentrl.environment import Task
from agentrl.harness.environment import HarnessEnvironment
from agentrl.harness.interface import Harness
from agentrl.processes import Processes, ProcessLedger
from agentrl.web.serve import Server
from lab.tiny_demo.launched import MODEL_NAME

RUN_S = 300.0
CONTEXT = 8192
"""Tokens that the stand-in says it takes, as the taught policy does."""
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


@dataclass(frozen=True)
class Call:
    """What the stand-in answers: a call of one of the program's tools."""

    tool: str
    arguments: dict[str, Any]

    @property
    def text(self) -> str:
        """As the model writes it."""
        return f'<tool_call>\n{{"name": "{self.tool}", "arguments": {json.dumps(self.arguments)}}}\n</tool_call>'

    def message(self, number: int) -> dict[str, Any]:
        """As the program gets it, in OpenAI's shape."""
        function = {"name": self.tool, "arguments": json.dumps(self.arguments)}
        calls = [{"id": f"call_{number}", "type": "function", "function": function}]
        return {"role": "assistant", "content": None, "tool_calls": calls}


@dataclass(frozen=True)
class Words:
    """What the stand-in answers: a reply without a call."""

    text: str

    def message(self, _number: int) -> dict[str, Any]:
        """As the program gets it, in OpenAI's shape."""
        return {"role": "assistant", "content": self.text}


Reply = Call | Words


@dataclass(frozen=True)
class Recorded:
    """A run of the program: its requests, and the score of what it left."""

    requests: Sequence[dict[str, Any]]
    score: float | None


async def record(harness: Harness, task: str, replies: Sequence[Reply]) -> Recorded:
    """Run a program on a task while the model answers with ``replies``, in this order.

    Raises:
        InfraError: the program asked more often than there are replies, or the sandbox failed.
    """
    requests: list[dict[str, Any]] = []
    async with _stand_in(requests, replies) as url:
        with TemporaryDirectory(prefix="recording-") as folder:
            ledger = ProcessLedger(Path(folder) / "processes.sqlite")
            kind = type("Recording", (HarnessEnvironment,), {"harnesses": {harness.name: harness}, "gateway_url": url})
            environment = kind(Processes(ledger))
            try:
                await environment.reset(Task(task), 0)
                asked = {"harness": harness.name, "api_key": "none", "model": MODEL_NAME, "timeout_s": RUN_S}
                await environment.step({"run_agent": asked})
                verdict = await environment.evaluate()
            finally:
                await environment.close()
                ledger.close()
    return Recorded(requests, verdict.score)


@asynccontextmanager
async def _stand_in(requests: list[dict[str, Any]], replies: Sequence[Reply]) -> AsyncIterator[str]:
    """Serve a model that answers by the script; yield its URL."""
    app = FastAPI()

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": MODEL_NAME, "object": "model", "max_model_len": CONTEXT}]}

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> Response:
        number = len(requests)
        requests.append(await request.json())
        message = replies[number].message(number)
        if requests[-1].get("stream"):
            return StreamingResponse(_events(number, message), media_type="text/event-stream")
        choice = {"index": 0, "message": message, "finish_reason": _reason(message)}
        return JSONResponse({**_head(number, "chat.completion"), "choices": [choice], "usage": USAGE})

    listening = socket.create_server(("127.0.0.1", 0))
    server = Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listening.close()


def _head(number: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{number}", "object": kind, "created": 0, "model": MODEL_NAME}


def _reason(message: dict[str, Any]) -> str:
    return "tool_calls" if "tool_calls" in message else "stop"


def _events(number: int, message: dict[str, Any]) -> Iterator[str]:
    """Yield a reply as a stream in OpenAI's shape: all of it in one piece, then its end."""
    calls = [{"index": index, **call} for index, call in enumerate(message.get("tool_calls", []))]
    piece = {**message, "tool_calls": calls} if calls else message
    choices = (
        [{"index": 0, "delta": piece, "finish_reason": None}],
        [{"index": 0, "delta": {}, "finish_reason": _reason(message)}],
    )
    for each in choices:
        yield f"data: {json.dumps({**_head(number, 'chat.completion.chunk'), 'choices': each})}\n\n"
    yield f"data: {json.dumps({**_head(number, 'chat.completion.chunk'), 'choices': [], 'usage': USAGE})}\n\n"
    yield "data: [DONE]\n\n"
