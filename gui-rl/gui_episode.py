"""One episode at a screen against an OpenAI-compatible server.

How replies become actions, what a format error is and answers, which pictures the model sees, and the limits are those of
training, by the same code. Only the place of a new picture differs: it follows the tool's message as one of the user's, since
not every server takes pictures from a tool.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.client.chat import Endpoint
from agentrl.environment import Environment, Task
from agentrl.exceptions import InvalidError
from agentrl.protocol import Observation, StepResult
from agentrl.rollout.actions import Malformed, error_text
from agentrl.rollout.context import without_old_pictures
from agentrl.rollout.episode import DONE, FAILED, LATE
from agentrl.rollout.opening import Opening, opening
from agentrl.rollout.pictures import IMAGE, parts_of, with_pictures
from agentrl.rollout.prompts import Reply
from agentrl.rollout.settings import Settings
from groundwork.chat_messages import Message
from openclaw.messages.text import content_text


@dataclass(frozen=True)
class Played:
    """One episode; ``score`` is None if the infrastructure lost it. ``ending`` is a limit, or ``done``."""

    task: str
    score: float | None
    turns: int
    format_errors: int
    ending: str
    detail: str


@dataclass
class Seen:
    """The pictures of an episode as ``data:`` URLs, by number."""

    urls: list[str] = field(default_factory=list[str])

    def add(self, observation: Observation) -> list[Message]:
        """Return the parts of an observation's pictures."""
        first = len(self.urls)
        self.urls += [f"data:image/png;base64,{each}" for each in observation.images]
        return [{"type": IMAGE, "number": number} for number in range(first, len(self.urls))]

    def sent(self, message: Message) -> Message:
        """Return a message as the server takes it."""
        if not isinstance(message.get("content"), list):
            return message
        urls = self.urls
        return {
            **message,
            "content": [
                {"type": "image_url", "image_url": {"url": urls[part["number"]]}} if part["type"] == IMAGE else part
                for part in parts_of(message)
            ],
        }


class Player:
    """Plays episodes with a model."""

    def __init__(self, model: Endpoint, settings: Settings, parameters: Mapping[str, Any]) -> None:
        """Prepare.

        Args:
            model: that replies.
            settings: limits of an episode.
            parameters: of a request, such as ``max_tokens``.
        """
        self._model, self._settings, self._parameters = model, settings, parameters

    async def play(self, environment: Environment, task: Task) -> Played:
        """Play one episode to its verdict; the caller closes the environment.

        Raises:
            ConfigError: the server fails.
            ConfigError: the environment is none that can be played here.
            InfraError: the screen failed.
        """
        settings, pictures = self._settings, Seen()
        first = await environment.reset(task, 0)
        begin = opening(first, settings.prompt_note, pictures.add(first))
        messages, began = list(begin.messages), time.monotonic()
        turns = errors = 0
        ending = ""
        while not ending:
            if turns >= settings.max_turns:
                ending = "turns"
            elif time.monotonic() - began >= settings.episode_seconds:
                ending = "seconds"
            elif settings.max_malformed is not None and errors >= settings.max_malformed:
                ending = "malformed"
            if ending:
                break
            if (fewer := without_old_pictures(messages, settings.keep_pictures)) is not None:
                messages = [message for _, message in fewer.kept]
            asked = [*map(pictures.sent, messages)]
            answer = await self._model.ask(asked, begin.tools, self._parameters)
            turns += 1
            said = said_in(answer["choices"][0]["message"])
            messages.append(said)
            if answer["choices"][0].get("finish_reason") == "length":
                ending = "reply_tokens"
                break
            try:
                (action,) = begin.form.actions(Reply(said, 0, False))
            except Malformed as error:
                errors += 1
                messages += _refused(said, error_text("malformed_action", str(error)))
                continue
            result = await self._step(environment, begin, action.content)
            if result is None:
                ending = LATE
            elif isinstance(result, InvalidError):
                messages.append(begin.form.answer(error_text(result.code, result.message), action.call_id))
            else:
                ending = DONE if result.done else "environment" if result.truncated else ""
                messages += _seen(begin, result.observation, pictures, action.call_id)
        verdict = FAILED if ending == LATE else await environment.evaluate()
        return Played(task.id, verdict.score, turns, errors, ending, verdict.detail)

    async def _step(
        self, environment: Environment, begin: Opening, action: Mapping[str, Any]
    ) -> StepResult | InvalidError | None:
        """Act once; None if that took longer than a step may."""
        limit = asyncio.timeout(begin.step_seconds or self._settings.step_seconds)
        try:
            async with limit:
                return await environment.step(dict(action))
        except InvalidError as error:
            return error
        except TimeoutError:
            if not limit.expired():
                raise
            return None


def said_in(message: Mapping[str, Any]) -> Message:
    """Return a server's message as the next request repeats it; arguments of calls are text."""
    said: Message = {"role": "assistant", "content": content_text(message.get("content"))}
    if message.get("reasoning_content"):
        said["reasoning_content"] = message["reasoning_content"]
    if calls := message.get("tool_calls"):
        said["tool_calls"] = [{**call, "function": _as_text(call["function"])} for call in calls]
    return said


def _as_text(function: Mapping[str, Any]) -> Message:
    given = function.get("arguments") or {}
    return {**function, "arguments": given if isinstance(given, str) else json.dumps(given)}


def _refused(said: Message, text: str) -> list[Message]:
    """Return the answers to a reply with a format error: one to each call, since servers ask for that."""
    calls: Sequence[Mapping[str, Any]] = said.get("tool_calls") or ()
    answers: list[Message] = [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]
    return answers or [{"role": "user", "content": text}]


def _seen(begin: Opening, observation: Observation, pictures: Seen, call_id: str | None) -> list[Message]:
    """Return the messages with what the screen shows after an action."""
    parts = pictures.add(observation)
    if not parts:
        return [begin.form.answer(observation.text, call_id)]
    return [
        begin.form.answer("done", call_id),
        with_pictures({"role": "user", "content": observation.text}, parts),
    ]
