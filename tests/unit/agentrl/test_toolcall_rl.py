"""The plugin of ``toolcall-rl``: rows and named tasks in a pool of its own, calls in both forms, rewards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import generate_with_retool as plugin
import httpx
import pytest
import torch

from agentrl.rollout import generate as loop
from agentrl.rollout.generate import agents_of
from agentrl.rollout.own_pool import OWN
from agentrl.rollout.records import names, read
from agentrl.tasks.toolcall.environment import ToolCallEnvironment
from agentrl.tasks.toolcall.generate import generate
from groundwork.exceptions import ConfigError
from lab.testkit.agent_rollouts import ScriptedPolicy
from lab.testkit.rollout_engine import rollout_args
from openclaw.ledger.records import Vote
from slime.rollout.generation import GenerateState
from slime.utils import http_utils
from slime.utils.misc import SingletonMeta
from slime.utils.types import Sample
from tests.helpers.plain_sandboxes import PlainProvider

END = "<|im_end|>"
PARAMETERS = {"temperature": 1.0, "max_new_tokens": 1024}
CALCULATE = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "6 * 7"}}\n</tool_call>'


class Stage:
    """What a test plays on."""

    def __init__(self, args: Any, policy: ScriptedPolicy, tokenizer: Any) -> None:
        self.args, self.policy, self.tokenizer = args, policy, tokenizer

    async def play(self, sample: Sample, **changes: Any) -> list[Sample]:
        samples = await plugin.generate(self.args.changed(**changes), sample, dict(PARAMETERS))
        assert isinstance(samples, list)
        return samples

    def record(self) -> list[dict[str, Any]]:
        folder = Path(self.args.run_dir)
        return read(folder, names(folder)[-1]).events


@pytest.fixture
def stage(tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets up a policy which says these replies, one after another."""

    @asynccontextmanager
    async def set_up(replies: Sequence[str]) -> AsyncIterator[Stage]:
        args = rollout_args(tiny_random_model).changed(
            run_dir=str(tmp_path), dynamic_history=True, apply_chat_template_kwargs={"enable_thinking": True}
        )
        SingletonMeta.clear(GenerateState)
        state = GenerateState(args)
        left = iter(replies)
        policy = ScriptedPolicy(lambda prompt: state.tokenizer.encode(next(left), add_special_tokens=False))
        monkeypatch.setattr(http_utils, "_http_client", httpx.AsyncClient(transport=httpx.MockTransport(policy)))
        monkeypatch.setattr(ToolCallEnvironment, "provider", PlainProvider(tmp_path))
        monkeypatch.delenv("AGENTRL_POOL_URL", raising=False)
        try:
            yield Stage(args, policy, state.tokenizer)
        finally:
            await agents_of(args).suspended.close()
            if state in OWN:
                await OWN[state].stop()
            SingletonMeta.clear(GenerateState)

    return set_up


def row(**more: Any) -> Sample:
    return Sample(group_index=3, index=7, prompt="How much is 6 * 7?", label="42", **more)


async def test_a_row_becomes_an_episode(stage: Any) -> None:
    async with stage([f"{CALCULATE}{END}", f"Answer: 42{END}"]) as on:
        (sample,) = await on.play(row())
        assert sample.reward == {"score": 1.0, "acc": True, "pred": "42"}
        assert sample.metadata["agent"]["calls"] == 1
        assert sum(sample.loss_mask) == len(on.tokenizer.encode(f"{CALCULATE}{END}Answer: 42{END}"))
        assert len(sample.rollout_log_probs) == sample.response_length
        assert '"label"' not in str(on.record())
        first = on.tokenizer.decode(on.policy.requests[0]["input_ids"])
        assert first.count("How much is 6 * 7?") == 1
        assert "code_interpreter" in first


async def test_a_row_may_name_a_task(stage: Any) -> None:
    name = "toolcall/add_two/train/3"
    answer = generate(name).answer
    assert answer is not None
    async with stage([f"Answer: {answer.text}{END}"]) as on:
        named = Sample(group_index=3, index=7, prompt=name, label="", metadata={"task_id": name})
        (sample,) = await on.play(named)
        assert sample.reward["score"] == 1.0


async def test_calls_in_text_are_one_long_reply(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are the engine's, and the engine stops after a call."""
    monkeypatch.setenv("TOOLCALL_ACTIONS", "retool_text")
    call = '<tool_call>{\n "name": "calculator",\n "arguments": {"expression": "6*7"}}</tool_call>'
    replies = [f"so {call}", "<tool_call>{</tool_call>", f"Answer: \\boxed{{42}}{END}"]
    async with stage(replies) as on:
        (sample,) = await on.play(row())
        assert sample.reward["score"] == 1.0
        assert sample.metadata["agent"]["malformed"] == 1
        assert sample.response.startswith(
            f"so {call}\n\n<interpreter>\n42\n</interpreter>\n\n<tool_call>{{</tool_call>\n\n"
        )
        sampled = [ids for reply in replies for ids in on.tokenizer.encode(reply, add_special_tokens=False)]
        kept = torch.tensor(sample.loss_mask, dtype=torch.bool)
        assert torch.tensor(sample.tokens[-sample.response_length :])[kept].tolist() == sampled
        assert [p["sampling_params"]["stop"] for p in on.policy.requests] == [["</tool_call>", "</code>"]] * 3
        first, second, third = (request["input_ids"] for request in on.policy.requests)
        assert (second[: len(first)], third[: len(second)]) == (first, second)


@pytest.mark.parametrize(("coefficient", "score"), [("0", -1.0), ("1", -1.05), ("20", -0.6 - 1.4)])
async def test_wrong_answers(coefficient: str, score: float, stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLCALL_WRONG_SHAPING", coefficient)
    async with stage([f"{CALCULATE}{END}", f"Answer: 43{END}"]) as on:
        (sample,) = await on.play(row())
        assert sample.reward == {"score": pytest.approx(score), "acc": False, "pred": "43"}


async def test_votes_and_coefficient_reach_the_rewards(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps: three votes on the first, of which one is against and none is unreadable; none counts on the last."""

    class Judge:
        counts: ClassVar[list[int]] = []

        async def votes(self, kind: Any, question: Any, count: int) -> list[Vote]:
            self.counts.append(count)
            values = [1, 1, -1] if "calculator" in question.reply else [None] * 3
            return [Vote(kind, "", value, None, 0.1) for value in values[:count]]

    monkeypatch.setattr(loop, "judge_of", lambda args: Judge())
    async with stage([f"{CALCULATE}{END}", f"Answer: 42{END}"]) as on:
        (sample,) = await on.play(row(), prm_m=3, prm_step_coef=0.5)
    mean = pytest.approx(1 + 0.5 / 3)
    assert Judge.counts == [3, 3]
    assert sample.reward == {"score": mean, "acc": True, "pred": "42"}
    wise = sample.metadata["step_wise"]
    assert wise["step_scores"] == [pytest.approx(1 / 3), None]
    assert wise["step_scores_with_outcome"] == [mean, 1.0]


def test_the_shaping_is_named_and_bounded() -> None:
    assert [plugin.wrong_shaping(calls, 0) for calls in (0, 9)] == [-1, -1]
    assert [plugin.wrong_shaping(calls, 1) for calls in (0, 2, 4, 10, 99)] == pytest.approx(
        [-1.1, -1, -0.9, -0.6, -0.6]
    )


async def test_what_stops_a_run(stage: Any) -> None:
    async with stage([]) as on:
        with pytest.raises(ConfigError, match="no label; give the right answer; or name a task"):
            await on.play(Sample(index=1, prompt="x"))
        with pytest.raises(ConfigError, match="remove --apply-chat-template"):
            await on.play(row(), apply_chat_template=True)


async def test_rewards_of_other_replies(tiny_random_model: Path) -> None:
    args = rollout_args(tiny_random_model)
    good, bad = (Sample(prompt="?", label="42", response=f"It is \\boxed{{{n}}}.") for n in (42, 43))
    assert await plugin.reward_func(args, good) == {"score": 1.0, "acc": True, "pred": "42"}
    found = await plugin.reward_func(args, [good, bad], evaluation=False)
    assert [each["score"] for each in found] == [1.0, -1.0]
    bad.reward = 0.5
    assert await plugin.reward_func(args, bad) == 0.5


def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLCALL_MAX_CALLS", "many")
    with pytest.raises(ConfigError, match="TOOLCALL_MAX_CALLS"):
        list(ToolCallEnvironment.tasks())
