"""How a reply becomes actions, and how what the environment answers becomes messages.

What an environment chooses is in `agentrl.rollout.opening`. Guarantees: a reply that cannot be read becomes no action. The
policy's words stay as they are, and it gets a structured error. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.protocol import JsonObject
from agentrl.rollout.prompts import Reply
from groundwork.chat_messages import Message, read_arguments
from openclaw.messages.text import content_text

BLOCK = re.compile(r"^```[^\n`]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


class Malformed(ValueError):
    """A reply holds no action; the message tells the policy what to write."""


@dataclass(frozen=True)
class Action:
    """One action of a reply, and the id of the tool call that asked for it."""

    content: JsonObject
    call_id: str | None = None


class Form(Protocol):
    """One way to write actions.

    Attributes:
        stops: texts after which the policy stops.
        appended: whether observations are appended to one long reply (`agentrl.rollout.retool`), not messages of their own.
    """

    stops: Sequence[str]
    appended: bool

    def actions(self, reply: Reply) -> list[Action]:
        """Return a reply's actions, at least one.

        Raises:
            Malformed: it holds none, or one that cannot be read.
        """
        ...

    def answer(self, text: str, call_id: str | None) -> Message:
        """Return the message with what an action led to; ``call_id`` None also stands for no action at all."""
        ...


class ToolCalls:
    """Tool calls in the model's own format; each is the action ``{"tool": name, "arguments": {...}}``.

    A reply without a call is the action ``{"text": ...}``.
    """

    stops: Sequence[str] = ()
    appended = False

    def actions(self, reply: Reply) -> list[Action]:
        """See `Form`."""
        calls = reply.message.get("tool_calls") or []
        if reply.malformed:
            raise Malformed("a tool call could not be read; write valid JSON with name and arguments")
        if not calls:
            return [Action({"text": content_text(reply.message["content"]).strip()})]
        return [Action(_called(call["function"]), call["id"]) for call in calls]

    def answer(self, text: str, call_id: str | None) -> Message:
        """See `Form`."""
        return {"role": "tool", "content": text} | ({"tool_call_id": call_id} if call_id else {})


class CodeBlock:
    """Exactly one fenced block; its text is the action ``{"code": ...}``."""

    stops: Sequence[str] = ()
    appended = False

    def actions(self, reply: Reply) -> list[Action]:
        """See `Form`."""
        blocks = BLOCK.findall(content_text(reply.message["content"]))
        if len(blocks) != 1:
            raise Malformed(f"the reply has {len(blocks)} code blocks; write exactly one, between lines of ```")
        return [Action({"code": blocks[0]})]

    def answer(self, text: str, call_id: str | None) -> Message:
        """See `Form`."""
        return {"role": "user", "content": text}


class Text:
    """The whole reply without its thought: the action ``{"text": ...}``."""

    stops: Sequence[str] = ()
    appended = False

    def actions(self, reply: Reply) -> list[Action]:
        """See `Form`."""
        return [Action({"text": content_text(reply.message["content"]).strip()})]

    def answer(self, text: str, call_id: str | None) -> Message:
        """See `Form`."""
        return {"role": "user", "content": text}


FORMS: Mapping[str, Form] = {"tool_calls": ToolCalls(), "code_block": CodeBlock(), "text": Text()}


def error_text(code: str, message: str) -> str:
    """Return the structured error that the policy gets in place of an observation."""
    return json.dumps({"error": {"code": code, "message": message}}, ensure_ascii=False)


def _called(function: Mapping[str, Any]) -> JsonObject:
    arguments = read_arguments(function["arguments"] or "{}")
    if not isinstance(arguments, dict):
        raise Malformed(f"the arguments of {function['name']} are no JSON object; write one")
    return {"tool": function["name"], "arguments": arguments}
