"""One episode on an issue against an OpenAI-compatible server, with the format and the context policy of training.

Guarantee: what is left out of a conversation is decided by `agentrl.rollout.context`, as in training. With a tokenizer its lengths are exact; without one
they follow from the number of tokens that the server counted last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.client.chat import Endpoint
from agentrl.environment import Task
from agentrl.exceptions import InvalidError
from agentrl.protocol import Verdict
from agentrl.rollout.actions import Malformed, error_text
from agentrl.rollout.context import cut
from agentrl.rollout.episode import LEAST_REPLY_SHARE
from agentrl.rollout.opening import opening
from agentrl.rollout.prompts import Reply
from agentrl.tasks.swe.environment import SweEnvironment
from groundwork.chat_messages import Message
from groundwork.processors import load_tokenizer
from openclaw.messages.text import content_text

MOST_MALFORMED = 10
"""Replies that cannot be read, after which the episode ends: as many as in training are spare."""
FIRST_RATIO = 0.5
"""Tokens of a character, before the server has counted any."""


class Lengths:
    """Counts the tokens of conversations."""

    def __init__(self, exact: Callable[[Sequence[Message]], int] | None) -> None:
        self._exact, self._ratio = exact, FIRST_RATIO

    def of(self, messages: Sequence[Message]) -> int:
        """Return the tokens of a prompt, or an estimate."""
        return self._exact(messages) if self._exact else round(self._ratio * _characters(messages))

    def learn(self, messages: Sequence[Message], tokens: int | None) -> None:
        """Take the server's count of a prompt."""
        if tokens:
            self._ratio = tokens / max(1, _characters(messages))


def lengths_of(tokenizer: str | None) -> Lengths:
    """Return how prompts are counted; by the chat template of a tokenizer's folder, if there is one."""
    if tokenizer is None:
        return Lengths(None)
    loaded = load_tokenizer(tokenizer)
    return Lengths(
        lambda messages: len(loaded.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False))
    )


@dataclass(frozen=True)
class Played:
    """A finished episode."""

    instance_id: str
    verdict: Verdict
    patch: str
    ending: str
    steps: int
    cuts: int
    malformed: int
    messages: list[Message] = field(repr=False)
    seconds: float = 0.0

    @property
    def resolved(self) -> bool:
        """Whether the issue is resolved."""
        return self.verdict.score == 1.0

    def result(self) -> dict[str, Any]:
        """Return the line of results."""
        return {
            "instance_id": self.instance_id,
            "resolved": self.resolved,
            "ending": self.ending,
            "steps": self.steps,
            "context_cuts": self.cuts,
            "malformed": self.malformed,
            "patch_characters": len(self.patch),
            "seconds": round(self.seconds, 2),
            "detail": self.verdict.detail,
        }


class Player:
    """Plays episodes with a model."""

    def __init__(
        self, model: Endpoint, lengths: Lengths, context: int, parameters: Mapping[str, Any], oldest_share: float = 0.3
    ) -> None:
        """Prepare.

        Args:
            model: that replies.
            lengths: of prompts.
            context: most tokens of prompt and reply.
            parameters: of a request; ``max_tokens`` is among them.
            oldest_share: see `agentrl.rollout.context`.
        """
        self._model, self._lengths, self._parameters = model, lengths, parameters
        self._budget = context - min(parameters["max_tokens"], context // LEAST_REPLY_SHARE)
        self._oldest_share = oldest_share

    async def play(self, environment: SweEnvironment, name: str) -> Played:
        """Play an instance to its verdict, and close the environment.

        Raises:
            ConfigError: the server fails, or the instance has no repository here.
            InfraError: a sandbox failed.
        """
        try:
            begin = opening(await environment.reset(Task(name), 0))
            shown, whole = list(begin.messages), list(begin.messages)
            steps = cuts = malformed = 0
            ending = ""
            while not ending:
                if self._lengths.of(shown) > self._budget:
                    shown, fits = self._cut(shown, len(begin.messages))
                    cuts += 1
                    if not fits:
                        ending = "context"
                        break
                answer = await self._model.ask(shown, begin.tools, self._parameters)
                self._lengths.learn(shown, (answer.get("usage") or {}).get("prompt_tokens"))
                message, finish = answer["choices"][0]["message"], answer["choices"][0].get("finish_reason")
                said: Message = {"role": "assistant", "content": content_text(message.get("content"))}
                said |= {"tool_calls": message["tool_calls"]} if message.get("tool_calls") else {}
                heard: list[Message] = []
                if finish == "length":
                    ending = "reply_tokens"
                else:
                    try:
                        for action in begin.form.actions(Reply(said, 0, False)):
                            steps += 1
                            try:
                                result = await environment.step(action.content)
                                text, over = result.observation.text, result.done or result.truncated
                                ending = "" if not over else "done" if result.done else "commands"
                            except InvalidError as error:
                                text = error_text(error.code, error.message)
                            heard.append(begin.form.answer(text, action.call_id))
                            if ending:
                                break
                    except Malformed as error:
                        malformed += 1
                        heard.append(begin.form.answer(error_text("malformed_action", str(error)), None))
                        ending = "malformed" if malformed >= MOST_MALFORMED else ""
                shown += [said, *heard]
                whole += [said, *heard]
            verdict = await environment.evaluate()
            return Played(name, verdict, environment.patch, ending, steps, cuts, malformed, whole)
        finally:
            await environment.close()

    def _cut(self, messages: list[Message], first: int) -> tuple[list[Message], bool]:
        """Return the conversation cut to the budget, and whether that was possible."""
        found = cut(
            "drop_middle",
            messages,
            self._budget,
            lambda kept: self._lengths.of([message for _, message in kept]),
            first=first,
            oldest_share=self._oldest_share,
        )
        return (messages, False) if found is None else ([message for _, message in found.kept], True)


def _characters(messages: Sequence[Message]) -> int:
    return sum(
        len(str(message.get("content") or "")) + len(str(message.get("tool_calls") or "")) for message in messages
    )
