"""The episode of `tests.integration.test_agent_clients` by the Python libraries of OpenAI and Anthropic, streaming."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anthropic import Anthropic
from openai import OpenAI

TOOL, ARGUMENTS = "read_file", {"path": "note.txt"}
ABOUT = "Read a file"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
Episode = Callable[[str, str, str, str], tuple[str, str]]
"""Asks for the note at an address, answers the call with its text, and reacts; returns both answers."""


def openai_chat(url: str, asked: str, note: str, reaction: str) -> tuple[str, str]:
    """Play it by chat completions."""
    client = OpenAI(base_url=f"{url}/v1", api_key="x")
    tools: Any = [{"type": "function", "function": {"name": TOOL, "description": ABOUT, "parameters": SCHEMA}}]
    messages: list[Any] = [{"role": "user", "content": asked}]

    def say() -> Any:
        with client.chat.completions.stream(model="policy", messages=messages, tools=tools) as stream:
            message = stream.get_final_completion().choices[0].message
        called = [
            {"id": call.id, "type": "function", "function": call.function.model_dump(include={"name", "arguments"})}
            for call in message.tool_calls or []
        ]
        messages.append({"role": "assistant", "content": message.content, **({"tool_calls": called} if called else {})})
        return message

    (call,) = say().tool_calls
    messages.append({"role": "tool", "tool_call_id": call.id, "content": note})
    told = say().content
    messages.append({"role": "user", "content": reaction})
    return told, say().content


def openai_responses(url: str, asked: str, note: str, reaction: str) -> tuple[str, str]:
    """Play it by the Responses API, with the whole history in each request."""
    client = OpenAI(base_url=f"{url}/v1", api_key="x")
    tools: Any = [{"type": "function", "name": TOOL, "description": ABOUT, "parameters": SCHEMA, "strict": False}]
    items: list[Any] = [{"role": "user", "content": asked}]

    def say() -> Any:
        options: Any = {"include": ["reasoning.encrypted_content"], "store": False}
        with client.responses.stream(model="policy", input=items, tools=tools, **options) as stream:
            response = stream.get_final_response()
        items.extend(item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output)
        return response

    (call,) = [item for item in say().output if item.type == "function_call"]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": note})
    told = say().output_text
    items.append({"role": "user", "content": reaction})
    return told, say().output_text


def anthropic_messages(url: str, asked: str, note: str, reaction: str) -> tuple[str, str]:
    """Play it by the Messages API."""
    client = Anthropic(base_url=url, api_key="x")
    tools: Any = [{"name": TOOL, "description": ABOUT, "input_schema": SCHEMA}]
    messages: list[Any] = [{"role": "user", "content": asked}]

    def say() -> Any:
        with client.messages.stream(model="policy", max_tokens=1000, messages=messages, tools=tools) as stream:
            message = stream.get_final_message()
        messages.append({"role": "assistant", "content": message.content})
        return message

    (call,) = [block for block in say().content if block.type == "tool_use"]
    messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": note}]})
    told = say().content[-1].text
    messages.append({"role": "user", "content": reaction})
    return told, say().content[-1].text
