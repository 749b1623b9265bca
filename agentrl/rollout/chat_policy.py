"""The policy of evaluation: a model behind any server with OpenAI's ``/v1/chat/completions``, and environments without a pool.

The loop, the format of actions, the limits, and what is left out are those of training (`agentrl.rollout.play`). Only the form of
a message differs where servers are strict: a new picture follows the tool's message as one of the user's, and each call of a
reply that cannot be read gets its own refusal.

Guarantees: the key is in a header only. A server that fails or refuses is an error with its address and what it said. With a
tokenizer the lengths of prompts are exact; without one they follow from the number of tokens that the server counted last.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import httpx

from agentrl.environment import Environment, Task
from agentrl.exceptions import DeadlineError
from agentrl.protocol import PASSED, Ending, JsonObject, Observation, StepResult, Verdict
from agentrl.rollout.actions import Form, Opening, Reply
from agentrl.rollout.pictures import IMAGE, parts_of, with_pictures
from agentrl.rollout.play import Kept, Policy
from groundwork.chat_messages import Message
from groundwork.exceptions import ConfigError
from openclaw.messages.text import content_text

NO_PARAMETERS: Mapping[str, Any] = {}
FIRST_RATIO = 0.5
"""Tokens of a character, before the server has counted any."""


class Model(Protocol):
    """A chat model."""

    async def ask(self, messages: Sequence[Message], tools: Any, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a chat completion in OpenAI's format.

        Args:
            messages: of the conversation.
            tools: that the model may call.
            parameters: of the request, such as ``temperature``.
        """
        ...


class Endpoint:
    """A server with ``/v1/chat/completions``."""

    def __init__(self, base_url: str, model: str, key: str | None, client: httpx.AsyncClient) -> None:
        self._url = f"{base_url.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
        self._model, self._key, self._client = model, key, client

    async def ask(
        self, messages: Sequence[Message], tools: Any = None, parameters: Mapping[str, Any] = NO_PARAMETERS
    ) -> dict[str, Any]:
        """Return the server's whole answer, which has a message; see `Model.ask`.

        Raises:
            ConfigError: the server cannot be reached, or refuses.
        """
        body = {"model": self._model, "messages": list(messages), **parameters, **({"tools": tools} if tools else {})}
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        try:
            answer = await self._client.post(self._url, json=body, headers=headers)
            answer.raise_for_status()
            found = answer.json()
            found["choices"][0]["message"]["role"]
        except httpx.HTTPStatusError as error:
            raise ConfigError(
                f"{self._url} answered {error.response.status_code}: {error.response.text[:300]}"
            ) from error
        except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
            raise ConfigError(f"{self._url} gave no reply ({type(error).__name__}); check its address") from error
        return found


class Lengths:
    """Counts the tokens of conversations."""

    def __init__(self, exact: Callable[[Sequence[Message]], int] | None = None) -> None:
        """Count with ``exact``, or estimate."""
        self._exact, self._ratio = exact, FIRST_RATIO

    def of(self, messages: Sequence[Message]) -> int:
        """Return the tokens of a prompt, or an estimate."""
        return self._exact(messages) if self._exact else round(self._ratio * _characters(messages))

    def learn(self, messages: Sequence[Message], tokens: int | None) -> None:
        """Take the server's count of a prompt."""
        if tokens:
            self._ratio = tokens / max(1, _characters(messages))


class ChatPolicy(Policy):
    """Asks a model for the replies of one episode."""

    def __init__(
        self,
        model: Model,
        parameters: Mapping[str, Any] = NO_PARAMETERS,
        *,
        context: int | None = None,
        lengths: Lengths | None = None,
    ) -> None:
        """Prepare.

        Args:
            model: replies.
            parameters: of a request; with a ``context``, ``max_tokens`` is among them.
            context: most tokens of prompt and reply; None without a bound.
            lengths: counts the tokens of prompts.
        """
        self._model, self._parameters, self._lengths = model, parameters, lengths or Lengths()
        self.context = context
        self.reply_tokens = int(parameters.get("max_tokens", 0))
        self.messages: list[Message] = []
        self._tools: Any = ()
        self._pictures: list[str] = []

    def begin(self, begin: Opening) -> None:
        """See `Policy.begin`."""
        self.messages, self._tools = list(begin.messages), begin.tools

    async def look(self, encoded: Sequence[str]) -> list[Message]:
        """See `Policy.look`."""
        first = len(self._pictures)
        self._pictures += [f"data:image/png;base64,{item}" for item in encoded]
        return [{"type": IMAGE, "number": number} for number in range(first, len(self._pictures))]

    def prepare(self) -> int:
        """See `Policy.prepare`."""
        return self._lengths.of(self.messages)

    def length_of(self, kept: Kept) -> int:
        """See `Policy.length_of`."""
        return self._lengths.of([message for _, message in kept])

    def replace(self, kept: Kept) -> None:
        """See `Policy.replace`."""
        self.messages = [message for _, message in kept]

    async def reply(self, turn: int, most: int) -> Reply:
        """See `Policy.reply`; the server counts the tokens."""
        bound = {"max_tokens": min(most, self.reply_tokens)} if self.reply_tokens else {}
        answer = await self._model.ask([*map(self._sent, self.messages)], self._tools, {**self._parameters, **bound})
        usage, choice = answer.get("usage") or {}, answer["choices"][0]
        self._lengths.learn(self.messages, usage.get("prompt_tokens"))
        message = message_of(choice["message"])
        self.messages.append(message)
        ending = Ending.REPLY_TOKENS if choice.get("finish_reason") == "length" else None
        return Reply(message, tokens=usage.get("completion_tokens") or 0, ending=ending)

    def heard(self, messages: Sequence[Message]) -> None:
        """See `Policy.heard`."""
        self.messages += messages

    def answers(self, form: Form, text: str, call_id: str | None, pictures: Sequence[Message]) -> list[Message]:
        """Return the messages with what an action led to; pictures, and what answers no call, are in one of the user's."""
        if not pictures:
            return [form.answer(text, call_id) if call_id else {"role": "user", "content": text}]
        return [form.answer("done", call_id), with_pictures({"role": "user", "content": text}, pictures)]

    def refusals(self, form: Form, reply: Message, text: str) -> list[Message]:
        """Return one answer to each call, since servers ask for that, or one of the user's."""
        calls: Sequence[Mapping[str, Any]] = reply.get("tool_calls") or ()
        answers: list[Message] = [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]
        return answers or [{"role": "user", "content": text}]

    def _sent(self, message: Message) -> Message:
        """Return a message as the server takes it."""
        if not isinstance(message.get("content"), list):
            return message
        return {
            **message,
            "content": [
                {"type": "image_url", "image_url": {"url": self._pictures[part["number"]]}}
                if part["type"] == IMAGE
                else part
                for part in parts_of(message)
            ],
        }


class Unpooled:
    """An environment that is played without a pool; the caller closes it. See `agentrl.rollout.play.Playable`."""

    def __init__(self, environment: Environment, task: Task) -> None:
        self._environment, self._task = environment, task

    async def reset(self, seed: int = 0, *, timeout_s: float) -> Observation:
        """Start the task from the beginning; the environment bounds the time."""
        return await self._environment.reset(self._task, seed)

    async def step(self, action: JsonObject, *, timeout_s: float) -> StepResult:
        """Act once.

        Raises:
            DeadlineError: it took longer than ``timeout_s`` seconds.
        """
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                return await self._environment.step(dict(action))
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise DeadlineError(f"step took longer than its {timeout_s:g} s", code=PASSED) from error

    async def evaluate(self, *, timeout_s: float) -> Verdict:
        """Judge the episode; the environment bounds the time."""
        return await self._environment.evaluate()


def message_of(message: Mapping[str, Any]) -> Message:
    """Return a server's message as the next request repeats it; arguments of calls are text."""
    found: Message = {"role": "assistant", "content": content_text(message.get("content"))}
    if message.get("reasoning_content"):
        found["reasoning_content"] = message["reasoning_content"]
    if calls := message.get("tool_calls"):
        found["tool_calls"] = [{**call, "function": _as_text(call["function"])} for call in calls]
    return found


def _as_text(function: Mapping[str, Any]) -> Message:
    given = function.get("arguments") or {}
    return {**function, "arguments": given if isinstance(given, str) else json.dumps(given)}


def _characters(messages: Sequence[Message]) -> int:
    return sum(
        len(str(message.get("content") or "")) + len(str(message.get("tool_calls") or "")) for message in messages
    )
