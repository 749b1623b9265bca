"""How an oracle solves a task, as messages: what supervised fine-tuning starts from.

Guarantee: what the tools answer in a conversation is what they answered, in this process's sandboxes.
"""

from __future__ import annotations

import json

from agentrl.environment import Task
from agentrl.protocol import JsonObject, Verdict
from agentrl.tasks.toolcall.draft import Draft
from agentrl.tasks.toolcall.environment import ToolCallEnvironment
from groundwork.chat_messages import Message


def last_words(draft: Draft) -> str:
    """Return an oracle's last message."""
    return "Done." if draft.answer is None else f"Answer: {draft.answer.text}"


async def solved(environment: ToolCallEnvironment, task: Task) -> tuple[list[Message], list[JsonObject], Verdict]:
    """Let an oracle solve a generated task; return its messages, the tools and the verdict.

    Args:
        environment: that ends with the caller; it is closed here.
        task: with calls that lead to the right end.

    Raises:
        AgentError: a call or a sandbox failed.
    """
    draft = environment.load(task, environment.config())
    try:
        begin = await environment.reset(task, 0)
        messages: list[Message] = [
            {"role": "system", "content": begin.data["system"]},
            {"role": "user", "content": begin.text},
        ]
        for number, action in enumerate(draft.calls):
            step = await environment.step(action)
            call_id = f"call_{number}"
            function = {"name": action["tool"], "arguments": json.dumps(action["arguments"])}
            called = {"id": call_id, "type": "function", "function": function}
            messages.append({"role": "assistant", "content": "", "tool_calls": [called]})
            messages.append({"role": "tool", "tool_call_id": call_id, "content": step.observation.text})
        messages.append({"role": "assistant", "content": last_words(draft)})
        await environment.step({"text": last_words(draft)})
        tools = begin.data.get("tools")
        return (
            messages,
            [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else [],
            (await environment.evaluate()),
        )
    finally:
        await environment.close()
