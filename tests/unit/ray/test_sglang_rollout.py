"""The default rollout function over a stand-in for the engines' HTTP interface."""

from __future__ import annotations

from pathlib import Path

import pytest

from groundwork.exceptions import ConfigError
from lab.testkit.rollout_engine import PROMPT, RolloutEngine, rollout_args
from slime.args import Arguments
from slime.contract.engine import logprob_of
from slime.exceptions import EngineError, PluginError
from slime.rollout import sglang_rollout
from slime.rollout.metrics import flatten
from slime.rollout.sglang_rollout import GenerateState
from slime.utils.types import Sample

PLUGINS = "lab.testkit.rollout_plugins"
LOGPROBS = [logprob_of(position, token) for position, token in enumerate([1, 2, 3])]


@pytest.fixture
def args(tiny_random_model: Path) -> Arguments:
    return rollout_args(tiny_random_model)


def prompt(index: int = 0, **changes: object) -> Sample:
    return Sample(index=index, group_index=index, prompt=PROMPT, **changes)  # type: ignore[arg-type]


class Prompts:
    """A data source's ``get_samples`` that counts, and gives no more than ``limit`` groups."""

    def __init__(self, limit: int = 1000) -> None:
        self.given = 0
        self.limit = limit

    def __call__(self, count: int) -> list[list[Sample]]:
        count = min(count, self.limit - self.given)
        groups = [[prompt(self.given + number)] for number in range(count)]
        self.given += count
        return groups


async def test_a_sample_has_the_engines_ids_and_logprobs(engine: RolloutEngine, args: Arguments) -> None:
    state = GenerateState(args)
    result = await sglang_rollout.generate_and_rm(args, prompt(), dict(state.sampling_params))
    assert isinstance(result, Sample)
    assert engine.requests[0]["input_ids"] == state.tokenizer.encode(PROMPT, add_special_tokens=False)
    assert result.tokens[-3:] == [1, 2, 3]
    assert result.rollout_log_probs == LOGPROBS
    assert (result.status, result.reward, result.weight_versions) == (Sample.Status.COMPLETED, 0.5, ["4"])
    assert result.weight_spans == [["4", 0, 3]]


async def test_a_finished_sample_is_returned_untouched(engine: RolloutEngine, args: Arguments) -> None:
    done = prompt(tokens=[1, 2], response_length=1, reward=3.0, status=Sample.Status.COMPLETED)
    assert await sglang_rollout.generate_and_rm(args, done, {}) is done
    assert await sglang_rollout.generate_and_rm(args, [done, done], {}) == [done, done]
    assert not engine.requests
    done.reward = None
    with pytest.raises(ValueError, match="is finished but has no reward"):
        await sglang_rollout.generate_and_rm(args, done, {})


async def test_a_request_that_an_engine_broke_off_goes_on(engine: RolloutEngine, args: Arguments) -> None:
    engine.cut = [1]
    sample = prompt(tokens=[7, 8])
    engine.prompt_tokens = 2
    result = await sglang_rollout.generate(args, sample, {"max_new_tokens": 5})
    assert [payload["input_ids"] for payload in engine.requests] == [[7, 8], [7, 8, 1]]
    assert (result.tokens, result.rollout_log_probs) == ([7, 8, 1, 2, 3], LOGPROBS)
    engine.cut = [0] * 20
    with pytest.raises(EngineError, match="10 times in a row"):
        await sglang_rollout.generate(args, prompt(tokens=[7, 8]), {"max_new_tokens": 5})


async def test_of_a_list_only_what_has_no_reward_is_scored(engine: RolloutEngine, args: Arguments) -> None:
    args.custom_generate_function_path = f"{PLUGINS}.fan_out"
    result = await sglang_rollout.generate_and_rm(args, prompt(), {})
    assert isinstance(result, list)
    assert [member.reward for member in result] == [7.0, 1.5]


async def test_a_group_reward_sees_the_group(engine: RolloutEngine, args: Arguments) -> None:
    args.group_rm = True
    group = await sglang_rollout.generate_and_rm_group(args, [prompt(0), prompt(1)], {"max_new_tokens": 2})
    assert [member.reward for member in group] == [1.5, 1.5]


async def test_a_group_reward_scores_lists_and_leaves_an_evaluation_its_own(
    engine: RolloutEngine, args: Arguments
) -> None:
    args.group_rm, args.custom_generate_function_path = True, f"{PLUGINS}.rewarded_pair"
    args.custom_rm_path = f"{PLUGINS}.place_in_group"
    first, second = await sglang_rollout.generate_and_rm_group(args, [prompt(0), prompt(1)], {})
    assert [[sample.reward for sample in member] for member in (first, second)] == [[0.0, 0.0], [1.0, 1.5]]
    first, second = await sglang_rollout.generate_and_rm_group(args, [prompt(0), prompt(1)], {}, evaluation=True)
    assert [[sample.reward for sample in member] for member in (first, second)] == [[7.0, 7.0]] * 2


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("evaluation", [True, False])
async def test_deterministic_engines_get_a_seed_per_member(
    engine: RolloutEngine, args: Arguments, deterministic: bool, evaluation: bool
) -> None:
    args.sglang_enable_deterministic_inference, args.rollout_seed = deterministic, 7
    shared = {"max_new_tokens": 2}
    await sglang_rollout.generate_and_rm_group(args, [prompt(n) for n in range(4, 7)], shared, evaluation)
    seeds = [request["sampling_params"].get("sampling_seed") for request in engine.requests]
    assert seeds == ([7, 8, 9] if deterministic else [None] * 3)
    assert shared == {"max_new_tokens": 2}


async def test_nothing_to_score_with_names_the_flag(engine: RolloutEngine, args: Arguments) -> None:
    args.custom_rm_path = None
    with pytest.raises(ConfigError, match="--custom-rm-path"):
        await sglang_rollout.generate_and_rm(args, prompt(), {"max_new_tokens": 2})


async def test_hooks_see_each_answer_before_it_is_scored(engine: RolloutEngine, args: Arguments) -> None:
    args.rollout_sample_hook_path = [f"{PLUGINS}.double", f"{PLUGINS}.replace"]
    output, _ = await sglang_rollout.generate_rollout_async(args, 3, Prompts())
    for sample in flatten(output.samples):
        assert sample.metadata == {"hooks": ["double", "replace"], "rollout_id": 3}
        assert sample.reward == 0.5
    args.rollout_sample_hook_path = [f"{PLUGINS}.hook_of_another_form"]
    with pytest.raises(PluginError, match="hook_of_another_form returned int"):
        await sglang_rollout.generate_and_rm(args, prompt(), {"max_new_tokens": 2})


async def test_a_rollout_is_exactly_the_groups_asked_for(engine: RolloutEngine, args: Arguments) -> None:
    args.dynamic_sampling_filter_path, args.rollout_batch_size = f"{PLUGINS}.keep_even", 3
    prompts = Prompts()
    output, aborted = await sglang_rollout.generate_rollout_async(args, 0, prompts)
    assert [group[0].index for group in output.samples] == [0, 2, 4]
    assert output.metrics is not None
    assert (
        output.metrics["rollout/dynamic_filter/drop_filter"]
        == prompts.given - 3 - output.metrics["rollout/aborted_groups"]
    )
    assert aborted == []


@pytest.mark.parametrize("bound", [None, 1])
async def test_a_group_without_samples_is_dropped_and_counted(
    engine: RolloutEngine, args: Arguments, bound: int | None
) -> None:
    args.custom_generate_function_path, args.max_weight_staleness = f"{PLUGINS}.nothing_for_odd", bound
    args.over_sampling_batch_size = 2
    output, _ = await sglang_rollout.generate_rollout_async(args, 0, Prompts())
    assert [sample.index for sample in flatten(output.samples)] == [0, 2]
    assert output.metrics is not None
    assert output.metrics["rollout/dynamic_filter/drop_empty"] >= 1


@pytest.mark.parametrize("partial", [False, True])
async def test_a_group_that_nobody_else_aborted_is_replaced_and_counted(
    engine: RolloutEngine, args: Arguments, partial: bool
) -> None:
    args.custom_generate_function_path, args.partial_rollout = f"{PLUGINS}.aborted_for_odd", partial
    output, again = await sglang_rollout.generate_rollout_async(args, 0, Prompts())
    assert [sample.index for sample in flatten(output.samples)] == [0, 2]
    assert all(sample.reward == 0.5 for sample in flatten(output.samples))
    assert output.metrics is not None
    assert output.metrics["rollout/dynamic_filter/drop_aborted"] >= 1
    indices = [sample.index for sample in flatten(again)]
    assert indices[:1] == [1] * partial  # 3 may be finished only when the batch is whole
    assert set(indices) <= {1, 3}
    assert all(sample.metadata == {"start_rollout_id": 0} for sample in flatten(again))


async def test_a_generate_function_that_only_gives_up_ends_the_rollout(engine: RolloutEngine, args: Arguments) -> None:
    args.custom_generate_function_path = f"{PLUGINS}.aborted_for_odd"
    odd = ([[prompt(2 * number + 1)] for number in range(count)] for count in iter(lambda: 2, 0))
    with pytest.raises(PluginError, match=r"aborted samples without a reward, for 64 groups in a row"):
        await sglang_rollout.generate_rollout_async(args, 0, lambda count: next(odd))


async def test_a_group_without_responses_is_not_stale(engine: RolloutEngine, args: Arguments) -> None:
    args.custom_generate_function_path, args.max_weight_staleness = f"{PLUGINS}.failed", 1
    output, _ = await sglang_rollout.generate_rollout_async(args, 0, Prompts())
    assert len(output.samples) == args.rollout_batch_size
    assert not any(sample.response_length for sample in flatten(output.samples))


async def test_a_group_is_numbered_by_its_first_sample(engine: RolloutEngine, args: Arguments) -> None:
    args.custom_generate_function_path = f"{PLUGINS}.nothing_for_odd"
    pairs = [[prompt(3), prompt(4)], [prompt(1), prompt(2)]]
    output, _ = await sglang_rollout.generate_rollout_async(args, 0, lambda count: pairs)
    assert [[sample.index for sample in flatten(group)] for group in output.samples] == [[2], [4]]


async def test_spare_groups_fill_up_before_more_prompts_are_asked_for(engine: RolloutEngine, args: Arguments) -> None:
    args.dynamic_sampling_filter_path = f"{PLUGINS}.keep_first_spare_odd"
    args.over_sampling_batch_size = 4
    prompts = Prompts()
    output, _ = await sglang_rollout.generate_rollout_async(args, 0, prompts)
    assert [group[0].index for group in output.samples] == [0, 1]
    assert prompts.given == 4
    assert output.metrics == {
        "rollout/dynamic_filter/drop_even": 1,
        "rollout/dynamic_filter/drop_odd": 1,
        "rollout/aborted_groups": 0,
    }


async def test_a_data_source_without_prompts_is_an_error(engine: RolloutEngine, args: Arguments) -> None:
    args.dynamic_sampling_filter_path = f"{PLUGINS}.keep_even"
    with pytest.raises(ValueError, match="no more prompts; it gave 1 of the 2 groups"):
        await sglang_rollout.generate_rollout_async(args, 0, Prompts(limit=2))


async def test_a_failing_reward_function_ends_the_rollout(engine: RolloutEngine, args: Arguments) -> None:
    args.custom_rm_path = f"{PLUGINS}.failing_reward"
    with pytest.raises(RuntimeError, match="the grader is away"):
        await sglang_rollout.generate_rollout_async(args, 0, Prompts())
    assert engine.running == 0


async def test_a_sample_that_fails_takes_the_requests_of_its_group_with_it(
    engine: RolloutEngine, args: Arguments
) -> None:
    args.custom_rm_path = f"{PLUGINS}.failing_reward"
    engine.holds = lambda number: number > 0
    with pytest.raises(RuntimeError, match="the grader is away"):
        await sglang_rollout.generate_and_rm_group(args, [prompt(0), prompt(1)], {"max_new_tokens": 2})
    assert len(engine.requests) == 2
    assert engine.running == 0


async def test_the_filters_of_a_finished_rollout(engine: RolloutEngine, args: Arguments) -> None:
    args.dynamic_sampling_filter_path = f"{PLUGINS}.keep_even"
    args.rollout_sample_filter_path = f"{PLUGINS}.remove_last"
    args.rollout_all_samples_process_path = f"{PLUGINS}.note_all"
    args.over_sampling_batch_size = 3
    output, _ = await sglang_rollout.generate_rollout_async(args, 0, Prompts())
    samples = flatten(output.samples)
    assert [sample.remove_sample for sample in samples] == [False, True]
    assert samples[0].metadata["all_groups"] == [0, 1, 2]


async def test_the_surplus_is_aborted_until_the_engine_is_idle(engine: RolloutEngine, args: Arguments) -> None:
    args.over_sampling_batch_size = 5
    engine.holds = lambda number: number >= 2
    output, aborted = await sglang_rollout.generate_rollout_async(args, 0, Prompts())
    assert len(output.samples) == 2
    assert output.metrics == {"rollout/aborted_groups": 3}
    assert aborted == []
    assert (engine.running, engine.aborts) == (0, 1)
    assert not GenerateState(args).pendings


def test_the_default_rollout_needs_prompts(args: Arguments) -> None:
    args.rollout_global_dataset = False
    with pytest.raises(ConfigError, match="--prompt-data"):
        sglang_rollout.generate_rollout(args, 0, None)
