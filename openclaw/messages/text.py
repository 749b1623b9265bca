"""Turns and next states as the plain text that a judge reads.

Guarantees: what the policy did is shown (content and tool calls); what it only thought is not. Several messages of a
next state are one text, in order. Nothing here is ever tokenised for training.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from groundwork.chat_messages import Message, content_text


def tool_call_text(call: dict[str, Any]) -> str:
    """Return a tool call as ``tool call NAME(ARGUMENTS)``, the arguments as JSON."""
    function = call.get("function", {})
    arguments = function.get("arguments", "")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return f"tool call {function.get('name', '')}({arguments})"


def response_text(message: Message) -> str:
    """Return what an assistant message says and does: its content, then one line for each tool call."""
    lines = [content_text(message.get("content")).strip()]
    lines += [tool_call_text(call) for call in message.get("tool_calls") or []]
    return "\n".join(line for line in lines if line)


def next_state_text(messages: Sequence[Message]) -> str:
    """Return a next state as text; with several messages each is headed by its role."""
    texts = [(message.get("role", "user"), response_text(message)) for message in messages]
    if len(texts) == 1:
        return texts[0][1]
    return "\n\n".join(f"[{role}]\n{text}" for role, text in texts)


def next_state_role(messages: Sequence[Message]) -> Literal["user", "tool"]:
    """Return whose reaction a next state is: ``user`` as soon as a user speaks in it, else ``tool``."""
    return "user" if any(message.get("role") == "user" for message in messages) else "tool"


def clip_middle(text: str, limit: int) -> str:
    """Return ``text`` when it has at most ``limit`` characters, else its two ends around a note of what is left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
