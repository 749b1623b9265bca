"""What the tiny policy is taught: for each task two first calls, a right and a wrong one, and after either the last reply.

Guarantee: the program's own verifier has judged both: the right call scores 1, the wrong one 0. The prompts are those that the
program sends, so the policy meets them again in training.

What an agent program really asks on a task, while a stand-in for the model answers by a script.

Guarantees: the program runs as it does in training, in the sandbox of `agentrl.harness.environment`; only the model is another.
Nothing outlives the call.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
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
from agentrl.tasks.harbor import SOLUTION
from agentrl.tasks.shell.draft import ANSWER
from agentrl.tasks.shell.generate import generate
from agentrl.web.serve import Server
from lab.tiny_demo.launched import MODEL_NAME

RUN_S = 300.0
KEY = "sk-recording"
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
                asked = {"harness": harness.name, "api_key": KEY, "model": MODEL_NAME, "timeout_s": RUN_S}
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


ELSEWHERE = "result.txt"
"""The wrong call writes the word here."""
VARIANTS = 5
"""Of each prompt that names a run or a time. All but the last are taught; on the last the policy is measured."""
RUN_ID = re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b")
WEEKDAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
TIMES = {
    re.compile(r"\b[0-2]\d:[0-5]\d\b"): "%H:%M",
    re.compile(rf"\b{WEEKDAY} {MONTH} [0-3]\d 20\d\d\b"): "%a %b %d %Y",
    re.compile(r"\b20\d\d-\d\d-\d\d\b"): "%Y-%m-%d",
    re.compile(rf"\b{WEEKDAY} 20\d\d-\d\d-\d\d\b"): "%a %Y-%m-%d",
}
"""How programs write a day or a time, and how `datetime` writes it so."""


class LessonError(RuntimeError):
    """The program did something else than the lesson needs, or the policy did not learn it."""


@dataclass(frozen=True)
class Lesson:
    """A prompt, and what the policy is to write next, each answer as often as the others."""

    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]]
    answers: Sequence[str]


def variants(lesson: Lesson) -> list[Lesson]:
    """Return a lesson as other runs at other times would send it, ``VARIANTS`` times; only itself if it names neither."""
    text = json.dumps(lesson.messages)
    if not any(pattern.search(text) for pattern in (RUN_ID, *TIMES)):
        return [lesson]
    return [replace(lesson, messages=json.loads(_at_another_time(text, number))) for number in range(VARIANTS)]


def as_runs(lessons: Sequence[Lesson]) -> list[list[Lesson]]:
    """Return the lessons as each of several runs would send them; one run if no lesson names a run or a time."""
    each = [variants(lesson) for lesson in lessons]
    return [[others[number % len(others)] for others in each] for number in range(max(map(len, each)))]


def _at_another_time(text: str, number: int) -> str:
    """Return a prompt as another run would send it."""
    draw, others = random.Random(number), dict[str, str]()

    def another_id(match: re.Match[str]) -> str:
        return others.setdefault(match[0], str(uuid.UUID(int=draw.getrandbits(128), version=4)))

    moment = datetime(2026, 1, 1) + timedelta(minutes=draw.randrange(3 * 365 * 24 * 60))
    text = RUN_ID.sub(another_id, text)
    for pattern, form in TIMES.items():
        text = pattern.sub(f"{moment:{form}}", text)
    return text


@dataclass(frozen=True)
class Tools:
    """How a program's model acts: the call that runs a line of bash, and the reply that ends the run."""

    run: Callable[[str], Call]
    end: Reply


PROGRAMS = {
    "mini-swe-agent": Tools(
        run=lambda line: Call("bash", {"command": line}),
        end=Call("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}),
    ),
    "openclaw": Tools(run=lambda line: Call("exec", {"command": line}), end=Words("Done.")),
    "opencode": Tools(
        run=lambda line: Call("bash", {"command": line, "description": "Solve the task"}), end=Words("Done.")
    ),
    "hermes": Tools(run=lambda line: Call("terminal", {"command": line}), end=Words("Done.")),
}
"""By the program's name."""


async def lessons(harness: Harness, tasks: Sequence[str], say: Callable[[str], None]) -> list[Lesson]:
    """Return the lessons of tasks of the family ``write_word``, recorded from the program.

    Raises:
        LessonError: the program asks otherwise than expected, or the verifier disagrees.
    """
    tools, found = PROGRAMS[harness.name], []
    for task in tasks:
        solution = generate(task).solution[SOLUTION].data.decode().splitlines()[-1]
        right, wrong = tools.run(solution), tools.run(solution.replace(ANSWER, ELSEWHERE))
        first: Lesson | None = None
        for call, score in ((right, 1.0), (wrong, 0.0)):
            run = await record(harness, task, [call, tools.end])
            if (len(run.requests), run.score) != (2, score):
                raise LessonError(f"{task}: {len(run.requests)} requests and a score of {run.score}, not 2 and {score}")
            opening, closing = run.requests
            first = Lesson(opening["messages"], opening["tools"], [right.text, wrong.text])
            found.append(Lesson(closing["messages"], closing["tools"], [tools.end.text]))
        assert first is not None
        found.append(first)
        say(f"recorded {harness.name} on {task}")
    return found
