"""Environments of tool tasks in tests, and agents that act in them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from agentrl.environment import Task
from agentrl.protocol import JsonObject, Verdict
from agentrl.tasks.toolcall.conversations import last_words
from agentrl.tasks.toolcall.environment import ToolCallEnvironment
from agentrl.tasks.toolcall.generate import generate
from tests.helpers.sandboxes import processes_that_end


@asynccontextmanager
async def tool_environment(
    folder: Path, kind: type[ToolCallEnvironment] = ToolCallEnvironment
) -> AsyncIterator[ToolCallEnvironment]:
    """Make an environment whose processes end with the block."""
    async with processes_that_end(folder) as processes:
        environment = kind(processes)
        try:
            yield environment
        finally:
            await environment.close()


async def judged(environment: ToolCallEnvironment, task: Task, actions: Sequence[JsonObject]) -> Verdict:
    """Return the verdict of an agent that takes these actions."""
    await environment.reset(task, 0)
    for action in actions:
        await environment.step(action)
    return await environment.evaluate()


def oracle(name: str) -> list[JsonObject]:
    """Return the actions that solve a task."""
    draft = generate(name)
    return [*draft.calls, {"text": last_words(draft)}]


def calls(tool: str, **arguments: str | float) -> JsonObject:
    """Return the action that calls a tool."""
    return {"tool": tool, "arguments": {**arguments}}
