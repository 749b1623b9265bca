"""How a reply becomes actions, and how what the environment answers becomes messages.

An environment chooses in the ``data`` of its first observation: ``actions`` is one of `FORMS`, ``tools`` are OpenAI tools,
``system`` is a system prompt, ``chat_template_kwargs`` are for the chat template. With ``tools`` the default form is
``tool_calls``, otherwise ``text``.

Guarantees: a reply that cannot be read becomes no action. The policy's words stay as they are, and it gets a structured
error. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.protocol import JsonObject, Observation
from agentrl.rollout.exceptions import EpisodeLost
from agentrl.rollout.prompts import Message, Reply, Tools
from openclaw.messages.arguments import read_arguments
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
    """One way to write actions."""

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

    def actions(self, reply: Reply) -> list[Action]:
        """See `Form`."""
        return [Action({"text": content_text(reply.message["content"]).strip()})]

    def answer(self, text: str, call_id: str | None) -> Message:
        """See `Form`."""
        return {"role": "user", "content": text}


FORMS: Mapping[str, Form] = {"tool_calls": ToolCalls(), "code_block": CodeBlock(), "text": Text()}


@dataclass(frozen=True)
class Opening:
    """How an episode begins: its first messages, the tools, the form of actions, keywords for the chat template."""

    messages: list[Message]
    tools: Tools
    form: Form
    keywords: Mapping[str, Any]


def opening(observation: Observation) -> Opening:
    """Return how an episode with this first observation begins.

    Raises:
        EpisodeLost: the environment names no known form, or asks for what this loop cannot do.
    """
    data = observation.data
    tools = data.get("tools") or []
    name = data.get("actions") or ("tool_calls" if tools else "text")
    if not isinstance(name, str) or name not in FORMS:
        raise EpisodeLost("opening", f"the environment's actions are {name!r}; use one of {', '.join(FORMS)}")
    keywords = data.get("chat_template_kwargs") or {}
    if not isinstance(tools, list) or not isinstance(keywords, dict):
        raise EpisodeLost("opening", "the environment's tools are no list, or its chat_template_kwargs no object")
    system = data.get("system")
    first: Sequence[Message] = [{"role": "system", "content": system}] if system else []
    messages = [*first, {"role": "user", "content": text_of(observation)}]
    return Opening(messages, [tool for tool in tools if isinstance(tool, dict)], FORMS[name], keywords)


def text_of(observation: Observation) -> str:
    """Return the text of an observation.

    Raises:
        EpisodeLost: it has pictures, which this loop does not show to the policy.
    """
    if observation.images:
        raise EpisodeLost("opening", "the observation has pictures; the agent loop shows the policy text only")
    return observation.text


def error_text(code: str, message: str) -> str:
    """Return the structured error that the policy gets in place of an observation."""
    return json.dumps({"error": {"code": code, "message": message}}, ensure_ascii=False)


def _called(function: Mapping[str, Any]) -> JsonObject:
    arguments = read_arguments(function["arguments"] or "{}")
    if not isinstance(arguments, dict):
        raise Malformed(f"the arguments of {function['name']} are no JSON object; write one")
    return {"tool": function["name"], "arguments": arguments}
