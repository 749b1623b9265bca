"""Training and evaluation play alike: the same replies lead to the same actions, limits and ending with either policy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl.environment import Task
from agentrl.protocol import Ending, Observation
from agentrl.rollout.actions import opening
from agentrl.rollout.chat_policy import ChatPolicy, Lengths, Unpooled
from agentrl.rollout.play import Play, Played
from agentrl.rollout.settings import Settings
from lab.testkit.agent_rollouts import GUESS, talk
from slime.utils.types import Sample
from tests.helpers.agent_stages import END, staged

CALL = '<tool_call>\n{"name": "guess", "arguments": {"number": 7}}\n</tool_call>'
UNREADABLE = '<tool_call>\n{"name": "guess", "arguments": [7]}\n</tool_call>'
READ = re.compile(r'"name": "(\w+)", "arguments": ([^\n]*)\}\n')


class Scripted:
    """A chat model that says ``replies`` by the number of those before; the last one goes on."""

    def __init__(self, replies: Sequence[str]) -> None:
        self._replies = replies

    async def ask(
        self, messages: Sequence[Mapping[str, Any]], tools: Any, parameters: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        before = sum(message["role"] == "assistant" for message in messages)
        text = self._replies[min(before, len(self._replies) - 1)]
        calls = [
            {"id": f"call_{before}_{number}", "type": "function", "function": {"name": found[1], "arguments": found[2]}}
            for number, found in enumerate(READ.finditer(text))
        ]
        message = {"role": "assistant", "content": text.partition("<tool_call>")[0], "tool_calls": calls}
        return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 2}}


async def chatted(replies: Sequence[str], task: Task, limits: Settings) -> tuple[Played, list[Any]]:
    """Return the episode of a chat policy, and the actions that reached the environment."""
    kind = talk(task)
    processes: Any = None
    played = await Play(ChatPolicy(Scripted(replies)), Unpooled(kind(processes), task), limits, task_id=task.id).play()
    assert played is not None
    return played, kind.seen


ENDINGS: list[tuple[list[str], dict[str, Any], dict[str, str], Ending, int]] = [
    (["one", "two"], {"steps": 2}, {}, Ending.DONE, 2),
    (["nonsense", "one"], {"steps": 2}, {}, Ending.DONE, 2),
    ([CALL, UNREADABLE, f"{CALL}\n{CALL}", CALL], {"steps": 4, "tools": [GUESS]}, {}, Ending.DONE, 4),
    ([UNREADABLE], {"steps": 4, "tools": [GUESS]}, {"AGENTRL_MAX_MALFORMED": "3"}, Ending.MALFORMED, 3),
    ([f"{CALL}\n{UNREADABLE}"], {"steps": 4, "tools": [GUESS]}, {"AGENTRL_MAX_TURNS": "2"}, Ending.TURNS, 2),
    (["none", "```\na\n```"], {"steps": 1, "actions": "code_block"}, {}, Ending.DONE, 2),
    (["on"], {"steps": 40}, {"AGENTRL_MAX_TURNS": "2"}, Ending.TURNS, 2),
    (["on"], {"steps": 40}, {"AGENTRL_MAX_SAMPLED_TOKENS": "4"}, Ending.SAMPLED_TOKENS, 2),
    (["on"], {"steps": 40}, {"AGENTRL_EPISODE_SECONDS": "1e-9"}, Ending.SECONDS, 0),
    (["on", "hang"], {"steps": 40}, {"AGENTRL_STEP_SECONDS": "0.1"}, Ending.STEP_SECONDS, 2),
    (["on"], {"steps": 40, "room": 2}, {}, Ending.ENVIRONMENT, 2),
]
ELSEWHERE = {Ending.CONTEXT, Ending.REPLY_TOKENS, Ending.PROGRAM_SECONDS, Ending.LOST}
"""In `test_rollout_generate` and, for agent programs, in `test_harness_driver`."""


def test_every_ending_is_tested() -> None:
    assert sorted({row[3] for row in ENDINGS} ^ ELSEWHERE) == sorted(Ending)


@pytest.mark.parametrize(("replies", "data", "variables", "ending", "turns"), ENDINGS)
async def test_an_episode_ends_alike_in_training_and_evaluation(
    replies: list[str],
    data: dict[str, Any],
    variables: dict[str, str],
    ending: Ending,
    turns: int,
    tmp_path: Path,
    tiny_random_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    task = Task("guess", data)
    chat, seen = await chatted(replies, task, Settings.from_env())
    async with staged(talk(task), [f"{each}{END}" for each in replies], tmp_path, tiny_random_model, monkeypatch) as on:
        (sample,) = await on.play()
        assert on.environment.seen == seen
    trained = sample.metadata["agent"]
    assert (chat.ending, chat.turns) == (ending, turns)
    told = (trained["ending"], trained["turns"], trained["malformed"], trained["calls"])
    assert told == (ending.value, turns, chat.malformed, chat.calls)
    assert (chat.verdict is None) == (trained["outcome"] is None)
    status = Sample.Status.COMPLETED if ending is Ending.DONE else Sample.Status.TRUNCATED
    reward = {Ending.STEP_SECONDS: -1.0, Ending.SECONDS: 0.0}.get(ending, 1.0)
    assert (sample.status, sample.reward, sample.remove_sample) == (status, reward, turns == 0)


async def test_a_prompt_is_counted_without_a_context() -> None:
    """So a limit on prompts needs no change of a policy."""
    policy = ChatPolicy(Scripted(["a reply"]), lengths=Lengths(lambda messages: 10 * len(messages)))
    policy.begin(opening(Observation(text="Guess.")))
    assert (policy.context, policy.prepare()) == (None, 10)
    await policy.reply(0, 8)
    assert policy.prepare() == 20


async def test_an_evaluation_leaves_out_what_training_leaves_out() -> None:
    """The oldest exchanges go first, and the whole conversation stays in what is returned."""
    limits = Settings(context="drop_middle", max_turns=12)
    policy = ChatPolicy(Scripted(["a reply"]), {"max_tokens": 50}, context=400)
    task = Task("guess", {"steps": 12, "more": "x1 y2 " * 20})
    kind = talk(task)
    processes: Any = None
    played = await Play(policy, Unpooled(kind(processes), task), limits, task_id="guess").play()
    assert played is not None
    assert (played.ending, played.turns) == (Ending.DONE, 12)
    assert played.cuts > 0
    assert any("earlier exchanges are left out" in str(message["content"]) for message in policy.messages)
    assert sum(message["role"] == "assistant" for message in played.messages) == 12
