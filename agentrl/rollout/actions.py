"""How an episode begins, how a reply becomes actions, and how what the environment answers becomes messages.

An environment says how to play it in the ``data`` of its first observation. ``system`` is a system prompt, ``tools`` are OpenAI
tools, ``chat_template_kwargs`` are for the chat template. ``actions`` is one of `FORMS`: by default ``tool_calls`` with tools,
otherwise ``text``. ``messages`` begin the conversation in place of ``system`` and the observation's text. ``step_seconds`` is
the longest that a step may take. Other fields are the environment's own.

Guarantees: a reply that cannot be read becomes no action. The policy's words stay as they are, and it gets a structured error.
What this loop cannot play is a `ConfigError`, since another lease would not help. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl.exceptions import InvalidError
from agentrl.protocol import MAX_SECONDS, Ending, JsonObject, Observation
from agentrl.rollout.pictures import with_pictures
from agentrl.tasks.gui.actions import HOW, read_call
from groundwork.chat_messages import Message, read_arguments
from groundwork.exceptions import ConfigError
from openclaw.messages.text import content_text

BLOCK = re.compile(r"^```[^\n`]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
CALL = re.compile(r"<tool_call>(.*?)</tool_call>|<code>(.*?)</code>", re.DOTALL)
OPEN = re.compile(r"<tool_call>|<code>")
FENCE = re.compile(r"\A\s*```[a-z]*\n(.*?)```\s*\Z", re.DOTALL)
Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Reply:
    """A policy's reply as a message.

    Attributes:
        message: in OpenAI's format.
        malformed: number of tool calls that are unreadable or cut short.
        thought: whether it has a thought.
        tokens: of the reply, as far as known.
        ending: that the reply itself brings: its length, or a context without room for it.

    Example:
        >>> reply = Reply({"role": "assistant", "content": "```python\\nprint(2)\\n```"}, tokens=9)
        >>> FORMS["code_block"].actions(reply)
        [Action(content={'code': 'print(2)\\n'}, call_id=None)]
    """

    message: Message
    malformed: int = 0
    thought: bool = False
    tokens: int = 0
    ending: Ending | None = None


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
        appended: whether observations are appended to one long reply (see `RetoolText`), not messages of their own.
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


class ComputerUse(ToolCalls):
    """One call of ``computer_use``, read strictly before it reaches the environment. See `Form`; the loop counts a `Malformed` reply as a format error."""

    def actions(self, reply: Reply) -> list[Action]:
        """Return the one action of a reply."""
        result = super().actions(reply)
        if len(result) != 1:
            raise Malformed(f"the reply has {len(result)} calls; write exactly one")
        if "text" in result[0].content:
            raise Malformed(f"the reply has no call; {HOW}")
        try:
            read_call(result[0].content)
        except InvalidError as error:
            raise Malformed(error.message) from error
        return result


class RetoolText:
    """Calls in text, as ReTool writes them (Feng et al. 2025, arXiv:2504.11536).

    The model writes ``<tool_call>`` with JSON, or ``<code>`` with Python, and stops there. A reply without a call is the last
    one.
    """

    stops: Sequence[str] = ("</tool_call>", "</code>")
    appended = True

    def actions(self, reply: Reply) -> list[Action]:
        """See `Form`."""
        text = str(reply.message["content"])
        match = CALL.search(text)
        if match is None:
            if OPEN.search(text):
                raise Malformed("a call has no end; write </tool_call> or </code> after it")
            return [Action({"text": text.strip()})]
        if match[1] is None:
            fenced = FENCE.match(match[2])
            code = fenced[1] if fenced else match[2].removeprefix("\n")
            return [Action({"tool": "code_interpreter", "arguments": {"code": code}})]
        return [Action(_called_in_text(match[1]))]

    def answer(self, text: str, call_id: str | None) -> Message:
        """See `Form`."""
        return {"role": "tool", "content": text}


FORMS: Mapping[str, Form] = {
    "tool_calls": ToolCalls(),
    "code_block": CodeBlock(),
    "text": Text(),
    "retool_text": RetoolText(),
    "computer_use": ComputerUse(),
}


def error_text(code: str, message: str) -> str:
    """Return the structured error that the policy gets in place of an observation."""
    return json.dumps({"error": {"code": code, "message": message}}, ensure_ascii=False)


def _called(function: Mapping[str, Any]) -> JsonObject:
    arguments = read_arguments(function["arguments"] or "{}")
    if not isinstance(arguments, dict):
        raise Malformed(f"the arguments of {function['name']} are not a JSON object; write one")
    return {"tool": function["name"], "arguments": arguments}


def _called_in_text(text: str) -> dict[str, Any]:
    """Return the action of a call; its JSON may have line breaks, also within its texts.

    Raises:
        Malformed: it is not a call.
    """
    try:
        call = json.loads(text, strict=False)
        name, arguments = call["name"], call["arguments"]
    except (ValueError, KeyError, TypeError, RecursionError):
        name = arguments = None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise Malformed('the call is not JSON; write {"name": NAME, "arguments": {...}}')
    return {"tool": name, "arguments": arguments}


@dataclass(frozen=True)
class Opening:
    """How an episode begins.

    Attributes:
        messages: the first ones; the last one is the user's.
        tools: that the policy may call.
        form: of its actions.
        keywords: for the chat template.
        step_seconds: the longest that a step may take; None if the environment does not say.
    """

    messages: list[Message]
    tools: Tools
    form: Form
    keywords: Mapping[str, Any]
    step_seconds: float | None


class _Read(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class _Text(_Read):
    type: Literal["text"]
    text: str


class _Message(_Read):
    role: Literal["system", "user", "assistant"]
    content: str | list[_Text]


class _Function(_Read):
    name: Annotated[str, Field(min_length=1)]
    parameters: JsonObject | None = None


class _Tool(_Read):
    type: Literal["function"]
    function: _Function


class _Data(_Read):
    """The fields that are this loop's; null stands for a missing one."""

    system: str | None = None
    messages: Annotated[list[_Message], Field(min_length=1)] | None = None
    tools: list[_Tool] | None = None
    actions: str | None = None
    chat_template_kwargs: JsonObject | None = None
    step_seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS)] | None = None


def opening(observation: Observation, note: str | None = None, pictures: Sequence[Message] = ()) -> Opening:
    """Return how an episode with this first observation begins.

    Args:
        observation: the first one.
        note: ends the last message.
        pictures: parts for those of the observation; they begin the last message.

    Raises:
        ConfigError: the environment asks for what this loop cannot do; it says what.
    """
    data = observation.data
    try:
        read = _Data.model_validate(data)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise ConfigError(f"the agent loop cannot play this environment: its first data has {problems}") from None
    name = read.actions or ("tool_calls" if read.tools else "text")
    if name not in FORMS:
        raise ConfigError(f"the environment's actions are {name!r}; the agent loop plays {', '.join(FORMS)}")
    messages = _messages(read, observation.text)
    if note:
        messages[-1] = {**messages[-1], "content": f"{messages[-1]['content']} {note}"}
    if pictures and FORMS[name].appended:
        raise ConfigError(f"the environment's actions are {name}, which have no place for its pictures")
    messages[-1] = with_pictures(messages[-1], pictures)
    return Opening(
        messages,
        data.get("tools") or [],  # pyright: ignore[reportArgumentType] - `_Data` has checked them
        FORMS[name],
        read.chat_template_kwargs or {},
        read.step_seconds,
    )


def _messages(read: _Data, text: str) -> list[Message]:
    """Return the first messages."""
    if read.messages is None:
        system: list[Message] = [{"role": "system", "content": read.system}] if read.system else []
        return [*system, {"role": "user", "content": text}]
    if read.system is not None:
        raise ConfigError("the environment's first data has both system and messages; put it into messages")
    if read.messages[-1].role != "user":
        raise ConfigError(
            f"the environment's messages end with the {read.messages[-1].role}'s; the last one must be the user's"
        )
    return [
        {"role": message.role, "content": content_text(message.model_dump()["content"])} for message in read.messages
    ]
