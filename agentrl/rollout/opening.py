"""How an environment says that its episode begins: the ``data`` of its first observation.

``system`` is a system prompt, ``tools`` are OpenAI tools, ``chat_template_kwargs`` are for the chat template. ``actions`` is
one of `FORMS`: by default ``tool_calls`` with tools, otherwise ``text``. ``messages`` begin the
conversation in place of ``system`` and the observation's text. ``step_seconds`` is the longest that a step may take.

Guarantee: what this loop cannot play is a ConfigError, since another lease would not help. Other fields are the
environment's own. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl.protocol import LONGEST_S, JsonObject, Observation
from agentrl.rollout.actions import FORMS as MESSAGE_FORMS
from agentrl.rollout.actions import Form
from agentrl.rollout.computer_use import ComputerUse
from agentrl.rollout.pictures import with_pictures
from agentrl.rollout.prompts import Tools
from agentrl.rollout.retool import RetoolText
from groundwork.chat_messages import Message
from groundwork.exceptions import ConfigError
from openclaw.messages.text import content_text

FORMS: Mapping[str, Form] = {**MESSAGE_FORMS, "retool_text": RetoolText(), "computer_use": ComputerUse()}


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
    step_seconds: Annotated[float, Field(gt=0, le=LONGEST_S)] | None = None


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
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
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
