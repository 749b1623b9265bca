"""The default rollout function over a stand-in for the engine's HTTP interface."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slime.exceptions import ConfigurationError
from slime.rollout import rm_hub, sglang_rollout
from slime.rollout.sglang_rollout import GenerateState
from slime.utils.misc import SingletonMeta
from slime.utils.types import Sample


class Engine:
    """Answers ``/generate`` with the ids 1, 2, 3 after ``delay`` turns of the loop, unless aborted."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.aborted = asyncio.Event()
        self.hold_after: int | None = None

    async def post(self, url: str, payload: dict[str, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
        if url.endswith("/abort_request"):
            self.aborted.set()
            return {}
        self.requests.append(payload)
        held = self.hold_after is not None and len(self.requests) > self.hold_after
        if held:
            await self.aborted.wait()
        await asyncio.sleep(0)
        ids = [1] if held else [1, 2, 3][: payload["sampling_params"]["max_new_tokens"]]
        return {
            "text": "x" * len(ids),
            "meta_info": {
                "output_token_logprobs": [[-0.25, token, None] for token in ids],
                "finish_reason": {"type": "abort" if held else "stop"},
                "weight_version": "4",
            },
        }


async def reward(args: Namespace, sample: Any, **kwargs: Any) -> Any:
    if isinstance(sample, list):
        return [1.5 for _ in sample]
    return 0.5


async def fan_out(args: Namespace, sample: Sample, sampling_params: dict[str, Any], evaluation: bool) -> list[Sample]:
    assert evaluation is False
    scored = Sample(index=sample.index, tokens=[1, 2], response_length=1, reward=7.0, status=Sample.Status.COMPLETED)
    unscored = Sample(index=sample.index, tokens=[1, 2], response_length=1, status=Sample.Status.COMPLETED)
    return [scored, unscored]


def keep_even(args: Namespace, group: list[Sample], **kwargs: Any) -> bool:
    return group[0].index % 2 == 0


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    engine = Engine()
    monkeypatch.setattr(sglang_rollout, "post", engine.post)
    plugins = {"reward": reward, "fan_out": fan_out, "keep_even": keep_even}
    for module in (sglang_rollout, rm_hub):
        monkeypatch.setattr(module, "load_function", plugins.__getitem__)
    SingletonMeta.clear(GenerateState)
    yield engine
    SingletonMeta.clear(GenerateState)


@pytest.fixture
def args(tiny_random_model: Path) -> Namespace:
    return Namespace(
        hf_checkpoint=str(tiny_random_model),
        rollout_num_gpus=1,
        rollout_num_gpus_per_engine=1,
        sglang_server_concurrency=8,
        sglang_router_ip="127.0.0.1",
        sglang_router_port=1,
        router="auto",
        rollout_temperature=0.6,
        rollout_top_p=1.0,
        rollout_top_k=-1,
        rollout_max_response_len=16,
        rollout_stop=None,
        rollout_stop_token_ids=None,
        rollout_skip_special_tokens=False,
        custom_generate_function_path=None,
        custom_rm_path="reward",
        group_rm=False,
        dynamic_sampling_filter_path=None,
        rollout_sample_filter_path=None,
        rollout_batch_size=2,
        over_sampling_batch_size=None,
        rollout_global_dataset=True,
    )


def prompt(index: int = 0, **changes: Any) -> Sample:
    return Sample(index=index, prompt="def f(x):", **changes)


class Prompts:
    """A data source's ``get_samples`` that counts."""

    def __init__(self) -> None:
        self.given = 0

    def __call__(self, count: int) -> list[list[Sample]]:
        groups = [[prompt(self.given + number)] for number in range(count)]
        self.given += count
        return groups


async def test_a_sample_has_the_engines_ids_and_logprobs(engine: Engine, args: Namespace) -> None:
    state = GenerateState(args)
    result = await sglang_rollout.generate_and_rm(args, prompt(), dict(state.sampling_params))
    assert isinstance(result, Sample)
    assert engine.requests[0]["input_ids"] == state.tokenizer.encode("def f(x):", add_special_tokens=False)
    assert result.tokens[-3:] == [1, 2, 3]
    assert result.rollout_log_probs == [-0.25] * 3
    assert (result.status, result.reward, result.weight_versions) == (Sample.Status.COMPLETED, 0.5, ["4"])


async def test_an_aborted_sample_goes_on_where_it_stopped(engine: Engine, args: Namespace) -> None:
    sample = prompt(tokens=[5, 6, 9], response_length=1, rollout_log_probs=[-1.0], status=Sample.Status.ABORTED)
    result = await sglang_rollout.generate(args, sample, {"max_new_tokens": 3})
    assert engine.requests[0]["input_ids"] == [5, 6, 9]
    assert engine.requests[0]["sampling_params"]["max_new_tokens"] == 2
    assert (result.tokens, result.response_length) == ([5, 6, 9, 1, 2], 3)
    assert result.rollout_log_probs == [-1.0, -0.25, -0.25]


async def test_a_finished_sample_is_returned_untouched(engine: Engine, args: Namespace) -> None:
    done = prompt(tokens=[1, 2], response_length=1, reward=3.0, status=Sample.Status.COMPLETED)
    assert await sglang_rollout.generate_and_rm(args, done, {}) is done
    assert not engine.requests


async def test_of_a_list_only_what_has_no_reward_is_scored(engine: Engine, args: Namespace) -> None:
    args.custom_generate_function_path = "fan_out"
    result = await sglang_rollout.generate_and_rm(args, prompt(), {})
    assert isinstance(result, list)
    assert [member.reward for member in result] == [7.0, 1.5]


async def test_a_group_reward_sees_the_group(engine: Engine, args: Namespace) -> None:
    args.group_rm = True
    group = await sglang_rollout.generate_and_rm_group(args, [prompt(0), prompt(1)], {"max_new_tokens": 2})
    assert [member.reward for member in group] == [1.5, 1.5]


async def test_nothing_to_score_with_names_the_flag(engine: Engine, args: Namespace) -> None:
    args.custom_rm_path = None
    with pytest.raises(ConfigurationError, match="--custom-rm-path"):
        await sglang_rollout.generate_and_rm(args, prompt(), {"max_new_tokens": 2})


async def test_a_rollout_is_exactly_the_groups_asked_for(engine: Engine, args: Namespace) -> None:
    args.dynamic_sampling_filter_path = "keep_even"
    prompts = Prompts()
    output, aborted = await sglang_rollout.generate_rollout_async(args, 0, prompts)
    assert [group[0].index for group in output.samples] == [0, 2]
    assert output.metrics is not None
    assert output.metrics["rollout/dynamic_filter/drop_filter"] == prompts.given - 2 - len(aborted)
    assert output.metrics["rollout/aborted_groups"] == len(aborted)


async def test_the_surplus_is_aborted_and_counted(engine: Engine, args: Namespace) -> None:
    args.over_sampling_batch_size = 5
    engine.hold_after = 2
    output, aborted = await sglang_rollout.generate_rollout_async(args, 0, Prompts())
    assert len(output.samples) == 2
    assert engine.aborted.is_set()
    assert [group[0].status for group in aborted] == [Sample.Status.ABORTED] * 3
    assert not GenerateState(args).pendings


def test_the_default_rollout_needs_prompts(args: Namespace) -> None:
    args.rollout_global_dataset = False
    with pytest.raises(ConfigurationError, match="--prompt-data"):
        sglang_rollout.generate_rollout(args, 0, None)
