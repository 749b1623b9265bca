"""What an agent program really asks on a task, while a stand-in for the model answers by a script.

Guarantees: the program runs as it does in training, in the sandbox of `agentrl.harness.environment`; only the model is another.
Nothing outlives the call.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn
from fastapi import FastAPI, Request

from agentrl.environment import Task
from agentrl.harness.environment import HarnessEnvironment
from agentrl.harness.interface import Harness
from agentrl.processes.ledger import ProcessLedger
from agentrl.processes.owned import Processes
from agentrl.web.serve import Server

RUN_S = 120.0


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
class Recorded:
    """A run of the program: its requests, and the score of what it left."""

    requests: Sequence[dict[str, Any]]
    score: float | None


async def record(harness: Harness, task: str, calls: Sequence[Call]) -> Recorded:
    """Run a program on a task while the model answers with ``calls``, in this order.

    Raises:
        InfraError: the program asked more often than there are calls, or the sandbox failed.
    """
    requests: list[dict[str, Any]] = []
    async with _stand_in(requests, calls) as url:
        with TemporaryDirectory(prefix="recording-") as folder:
            ledger = ProcessLedger(Path(folder) / "processes.sqlite")
            kind = type("Recording", (HarnessEnvironment,), {"harnesses": {harness.name: harness}, "gateway_url": url})
            environment = kind(Processes(ledger))
            try:
                await environment.reset(Task(task), 0)
                asked = {"harness": harness.name, "api_key": "none", "model": "policy", "timeout_s": RUN_S}
                await environment.step({"run_agent": asked})
                verdict = await environment.evaluate()
            finally:
                await environment.close()
                ledger.close()
    return Recorded(requests, verdict.score)


@asynccontextmanager
async def _stand_in(requests: list[dict[str, Any]], calls: Sequence[Call]) -> AsyncIterator[str]:
    """Serve a model that answers by the script; yield its URL."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> dict[str, Any]:
        number = len(requests)
        requests.append(await request.json())
        choice = {"index": 0, "message": calls[number].message(number), "finish_reason": "tool_calls"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        told = {"id": f"chatcmpl-{number}", "object": "chat.completion", "created": 0, "model": "policy"}
        return {**told, "choices": [choice], "usage": usage}

    listening = socket.create_server(("127.0.0.1", 0))
    server = Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listening.close()
