"""What the warm start imitates: episodes of a careless agent, with a verdict on each of its steps.

A trace has the messages that the agent loop would have, so the policy meets the same prompts in training. The agent is right in
some episodes only; which mistakes it makes is drawn, and hardly depends on the family of the task. So GRPO has something to choose from,
and what it learns in one family can help in another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from agentrl.protocol import JsonObject, Observation
from agentrl.rollout.actions import Tools, opening
from agentrl.tasks.names import Split
from groundwork.chat_messages import Message

FIRST_NUMBER, LAST_NUMBER = 1000, 900_000
"""Of the tasks of the warm start: GRPO has smaller numbers."""


@dataclass(frozen=True)
class Step:
    """One reply of the agent.

    Attributes:
        text: as the model writes it, without the token that ends it.
        heard: what the environment answers; None if the episode ends here.
        reason: why a judge thinks what it thinks.
        good: whether it brings the goal closer.
    """

    text: str
    heard: str
    reason: str
    good: bool


@dataclass(frozen=True)
class Trace:
    """An episode: how it begins, and its steps."""

    messages: Sequence[Message]
    tools: Tools
    steps: Sequence[Step]


@dataclass(frozen=True, kw_only=True)
class AgentTasks:
    """What the agent of one folder is trained and measured on.

    Attributes:
        name: in reports and file names.
        environment: dotted path of the class that a pool lends out.
        trained: families that GRPO trains on.
        unseen: the family that only the warm start has seen.
        task: the name of a task, from its family, split and number.
        variables: of the environment, for the pool and the trainer.
    """

    name: str
    environment: str
    trained: Sequence[str]
    unseen: str
    task: Callable[[str, Split, int], str]
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def families(self) -> Sequence[str]:
        """All families."""
        return (*self.trained, self.unseen)


@dataclass(frozen=True, kw_only=True)
class TaskSet(AgentTasks):
    """Tasks whose episodes are text, with what the warm start imitates.

    Attributes:
        trace: an episode of an agent on a task, by its name; a careless one, or one that makes no mistake.
        needed: how many replies solve a task, if they are those of an episode without a mistake.
    """

    trace: Callable[[Random, str, bool], Trace]
    needed: int

    def drawn(self, rng: Random, split: Split = "train", *, careless: bool = True) -> tuple[str, Trace]:
        """Return a task that GRPO does not have, and a trace of it."""
        name = self.task(rng.choice(self.families), split, rng.randrange(FIRST_NUMBER, LAST_NUMBER))
        return name, self.trace(rng, name, careless)


def call(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return a tool call as the model writes it."""
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}\n</tool_call>'


def begun(text: str, data: JsonObject, steps: Sequence[Step]) -> Trace:
    """Return a trace that begins as the agent loop begins with this first observation."""
    begin = opening(Observation(text=text, data=data))
    return Trace(begin.messages, begin.tools, steps)
