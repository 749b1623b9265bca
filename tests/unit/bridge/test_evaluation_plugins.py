"""``generate`` and ``reward_func`` of the method folders do real work under the contract's names."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from lab.testkit.tiny_random import build_tokenizer
from openclaw.training import evaluation
from slime.args import Arguments
from slime.utils.types import Sample
from tests.helpers.fake_engine import FakeEngine

SERVERS = ["openclaw_api_server", "openclaw_opd_api_server", "openclaw_combine_api_server"]
ARGS = Arguments(
    prm_router_ip="127.0.0.1",
    prm_router_port=1,
    prm_model_path="/models/judge",
    prm_m=3,
    prm_temperature=0.6,
    prm_max_new_tokens=64,
)


class ClosableEngine(FakeEngine):
    """A fake engine that knows whether it was closed."""

    closed = False

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def judge_engine(monkeypatch: pytest.MonkeyPatch) -> ClosableEngine:
    answers = iter(["\\boxed{1}", "\\boxed{1}", "\\boxed{-1}"] * 2)
    engine = ClosableEngine(lambda _: next(answers))
    monkeypatch.setattr(evaluation, "EngineHttp", lambda url, **keywords: engine)
    monkeypatch.setattr(evaluation, "load_judge_tokenizer", lambda path: build_tokenizer())
    return engine


@pytest.mark.parametrize("module", SERVERS)
def test_names_and_parameters_are_those_of_the_contract(module: str) -> None:
    plugin = __import__(module)
    assert inspect.iscoroutinefunction(plugin.generate)
    assert inspect.iscoroutinefunction(plugin.reward_func)
    assert list(inspect.signature(plugin.generate).parameters) == ["args", "sample", "sampling_params", "evaluation"]
    parameters = inspect.signature(plugin.reward_func).parameters
    assert next(iter(parameters)) == "args"
    assert parameters["kwargs"].kind is inspect.Parameter.VAR_KEYWORD


async def test_generate_asks_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(args: Arguments, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
        sample.response = f"{args.name} {sampling_params['temperature']}"
        return sample

    monkeypatch.setattr(evaluation.sglang_rollout, "generate", answer)
    sample = await evaluation.generate(SimpleNamespace(name="engine"), Sample(), {"temperature": 0.5}, evaluation=True)
    assert sample.response == "engine 0.5"


async def test_reward_is_the_judges_majority(judge_engine: ClosableEngine) -> None:
    sample = Sample(response="The sum is 5.", metadata={"next_state": "Thanks!"})
    assert await evaluation.judge_reward(ARGS, sample) == {"score": 1.0, "acc": 1.0, "reason": "judged"}
    assert len(judge_engine.payloads) == 3
    assert judge_engine.closed


async def test_reward_without_next_state_is_zero_with_its_reason(judge_engine: ClosableEngine) -> None:
    reward = {"score": 0.0, "acc": 0.0, "reason": "no_next_state"}
    assert await evaluation.judge_reward(ARGS, Sample()) == reward
    assert await evaluation.judge_reward(ARGS, [Sample(), Sample()]) == [reward, reward]
    assert await evaluation.judge_reward(ARGS, []) == []
    assert judge_engine.payloads == []


async def test_reward_needs_a_judge_engine() -> None:
    sample = Sample(response="x", metadata={"next_state": [{"role": "tool", "content": "done"}]})
    with pytest.raises(ValueError, match="--prm-enable"):
        await evaluation.judge_reward(Arguments(prm_router_ip=None), sample)


async def test_the_judge_is_asked_as_the_flags_say(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ClosableEngine(lambda _: "\\boxed{1}")
    asked: dict[str, Any] = {}

    def connect(url: str, **keywords: Any) -> ClosableEngine:
        asked.update(url=url, **keywords)
        return engine

    monkeypatch.setattr(evaluation, "EngineHttp", connect)
    monkeypatch.setattr(evaluation, "load_judge_tokenizer", lambda path: asked.update(model=path) or build_tokenizer())
    args = ARGS.changed(prm_m=5, prm_temperature=0.25, prm_max_new_tokens=33)
    args.prm_router_ip, args.prm_router_port, args.prm_model_path = "10.0.0.9", 77, "/models/other"
    await evaluation.judge_reward(args, Sample(response="5", metadata={"next_state": "Thanks!"}))
    assert (asked["url"], asked["concurrency"], asked["model"]) == ("http://10.0.0.9:77", 5, "/models/other")
    assert len(engine.payloads) == 5
    sampling = [payload["sampling_params"] for payload in engine.payloads]
    assert {(one["temperature"], one["max_new_tokens"]) for one in sampling} == {(0.25, 33)}
