"""What an agent is told besides the task: how to call tools, and how to end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from agentrl.protocol import JsonObject
from agentrl.tasks.toolcall.draft import Draft

SOLVE = "Solve the task with the tools."
ANSWER = "End with a line such as 'Answer: 42'."
STATE = "When it is done, write 'Done.'"
TEXT_CALL = (
    'To call a tool, write <tool_call>{"name": NAME, "arguments": {...}}</tool_call>. To run Python with '
    "code_interpreter, you may write <code> and </code> around the code instead. What the tool answers follows between "
    "<interpreter> and </interpreter>."
)


def system_of(draft: Draft) -> str:
    """Return the system prompt of a task."""
    return f"{SOLVE} {STATE if draft.answer is None else ANSWER}"


def format_tool_descriptions(tools: Sequence[JsonObject]) -> str:
    """Return tools in OpenAI's format as text, one a line, for a prompt that cannot carry them otherwise."""
    return "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)


def text_system_of(draft: Draft, tools: Sequence[JsonObject]) -> str:
    """Return the system prompt for calls in text."""
    return f"{system_of(draft)}\n\n# Tools\n\n{TEXT_CALL}\n\n{format_tool_descriptions(tools)}"


def opening_data(
    draft: Draft, tools: list[JsonObject], form: Literal["tool_calls", "retool_text"], seconds: float
) -> JsonObject:
    """Return the data of the first observation; see `agentrl.rollout.actions`.

    Args:
        draft: the task.
        tools: in OpenAI's format.
        form: of the calls.
        seconds: the longest that a step may take.
    """
    if form == "retool_text":
        return {"system": text_system_of(draft, tools), "actions": form, "step_seconds": seconds}
    return {"system": system_of(draft), "tools": [*tools], "actions": form, "step_seconds": seconds}
