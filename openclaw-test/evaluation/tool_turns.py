"""A conversation in which the model calls tools until it replies without a call, played by the loop of training.

Guarantees: format, refusals and limits are those of `agentrl.rollout.play`; a reply with a call that cannot be read is refused
as a whole. The number of replies and of calls is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.exceptions import InvalidError
from agentrl.protocol import Ending, JsonObject, Observation, StepResult, Verdict
from agentrl.rollout.chat_policy import ChatPolicy
from agentrl.rollout.play import Observer, Play, Playable
from agentrl.rollout.settings import Settings
from evaluation.talk import Said, Talk
from groundwork.chat_messages import Message

MAX_CALLS = 32
MALFORMED = ("invalid_action", "unknown_tool", "invalid_arguments")
"""Codes of errors that count a call as malformed."""
SOUND = (Ending.DONE, Ending.REPLY_TOKENS)
"""Endings that the last reply alone explains."""


class MalformedCall(InvalidError):
    """A call that nobody can carry out; the text tells the model what to write."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="invalid_arguments")


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended.

    Attributes:
        said: the last reply.
        malformed: number of malformed calls.
        bound: that ended it, if one did.
        verdict: of the environment.
    """

    said: Said
    malformed: int
    bound: str
    verdict: Verdict | None


async def converse(talk: Talk, environment: Playable, most_replies: int) -> Ended:
    """Play an episode whose actions are calls of tools.

    Args:
        talk: an empty conversation; it has all messages in the end.
        environment: says what the user asks and which tools there are, and carries the calls out.
        most_replies: bound on the replies after the first.
    """
    model = _Spoken(talk)
    policy = ChatPolicy(model)
    counted = _Counted(environment, policy)
    play = Play(policy, counted, Settings(max_turns=most_replies + 1), task_id=talk.session, observer=counted)
    played = await play.play()
    assert played is not None, "no chat is suspended"
    assert model.said is not None, "the first reply comes before any limit"
    over = played.ending is Ending.DONE and played.messages[-1]["role"] == "user"
    talk.messages = played.messages[:-1] if over else played.messages
    bound = "" if played.ending in SOUND else played.ending.value
    if played.ending is Ending.TURNS:
        bound = "too_many_replies"
    elif counted.calls > MAX_CALLS:
        bound = "too_many_calls"
    return Ended(model.said, counted.malformed + talk.malformed_calls, bound, played.verdict)


class _Spoken:
    """A `Talk` as a chat model."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self.said: Said | None = None

    async def ask(self, messages: Sequence[Message], tools: Any, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `agentrl.rollout.chat_policy.Model`."""
        talk, before = self._talk, self._talk.tokens
        talk.messages = list(messages)
        self.said = await talk.reply(tools)
        reason = "length" if self.said.defect == "truncated" else "stop"
        return {
            "choices": [{"message": talk.messages[-1], "finish_reason": reason}],
            "usage": {"completion_tokens": talk.tokens - before},
        }


class _Counted(Observer):
    """An environment whose calls are bounded and counted."""

    def __init__(self, environment: Playable, policy: ChatPolicy) -> None:
        self._environment, self._policy = environment, policy
        self.calls = self.malformed = 0

    async def reset(self, seed: int = 0, *, timeout_s: float) -> Observation:
        """See `Playable`."""
        return await self._environment.reset(seed, timeout_s=timeout_s)

    async def step(self, action: JsonObject, *, timeout_s: float) -> StepResult:
        """See `Playable`."""
        self.calls += "tool" in action
        if self.calls > MAX_CALLS:
            return StepResult(observation=Observation(text=f"[no call is left of {MAX_CALLS}]"), truncated=True)
        try:
            return await self._environment.step(action, timeout_s=timeout_s)
        except InvalidError as error:
            self.malformed += error.code in MALFORMED
            raise

    async def evaluate(self, *, timeout_s: float) -> Verdict:
        """See `Playable`."""
        return await self._environment.evaluate(timeout_s=timeout_s)

    def write(self, kind: str, **fields: Any) -> None:
        """Count the calls of a reply that could not be read."""
        if kind == "malformed":
            self.malformed += len(self._policy.messages[-1]["tool_calls"])
