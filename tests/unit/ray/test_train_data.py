"""Samples to shards: nothing lost, nothing twice, equal counts, caps and denominators."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime.args import Arguments
from slime.arguments.placement import padded_length
from slime.rollout.metrics import flatten, oldest_versions, rollout_metrics, staleness
from slime.rollout.rewards import constant_groups, post_process_rewards
from slime.rollout.train_data import convert, split_by_dp, steps_of
from slime.utils.types import Sample


def arguments(**changes: Any) -> Arguments:
    values = {
        "advantage_estimator": "grpo",
        "rewards_normalization": True,
        "grpo_std_normalization": True,
        "custom_reward_post_process_path": None,
        "reward_key": None,
        "global_batch_size": 4,
        "use_dynamic_batch_size": True,
        "max_tokens_per_gpu": 64,
        "micro_batch_size": 2,
    }
    return Arguments(**{**values, **changes})


def sample(index: int, prompt: int = 3, response: int = 2, reward: float = 1.0, **changes: Any) -> Sample:
    values: dict[str, Any] = {
        "index": index,
        "tokens": list(range(prompt + response)),
        "response_length": response,
        "reward": reward,
        "rollout_log_probs": [-0.5] * response,
        "status": Sample.Status.COMPLETED,
    }
    return Sample(**{**values, **changes})


@st.composite
def batches(draw: st.DrawFn) -> tuple[dict[str, Any], int, Arguments]:
    responses = draw(st.lists(st.integers(0, 40), min_size=1, max_size=40))
    samples = [
        sample(
            index,
            draw(st.integers(1, 30)),
            response,
            loss_mask=draw(st.lists(st.integers(0, 1), min_size=response, max_size=response)),
        )
        for index, response in enumerate(responses)
    ]
    args = arguments(
        global_batch_size=draw(st.integers(1, len(samples))),
        use_dynamic_batch_size=draw(st.booleans()),
        max_tokens_per_gpu=draw(st.integers(8, 120)),
        micro_batch_size=draw(st.integers(1, 5)),
        disable_rollout_trim_samples=draw(st.booleans()),
        context_parallel_size=draw(st.sampled_from((1, 2, 4))),
    )
    return convert(args, samples), draw(st.integers(1, 5)), args


@given(batches())
def test_every_sample_is_in_exactly_one_micro_batch(case: tuple[dict[str, Any], int, Arguments]) -> None:
    data, ranks, args = case
    shards = split_by_dp(data, ranks, args)
    steps = steps_of(len(data["tokens"]), args)
    for number, step in enumerate(steps):
        placed = [
            shard["partition"][local]
            for shard in shards
            for batch in shard["micro_batch_indices"][number]
            for local in batch
        ]
        assert sorted(placed) == list(step)
    for shard in shards:
        local = [index for step in shard["micro_batch_indices"] for batch in step for index in batch]
        assert sorted(local) == list(range(len(shard["tokens"])))
        assert shard["tokens"] == [data["tokens"][index] for index in shard["partition"]]
        assert shard["rollout_log_probs"] == [data["rollout_log_probs"][index] for index in shard["partition"]]


@given(batches())
def test_ranks_agree_on_counts_and_denominators(case: tuple[dict[str, Any], int, Arguments]) -> None:
    data, ranks, args = case
    shards = split_by_dp(data, ranks, args)
    counts = {tuple(len(step) for step in shard["micro_batch_indices"]) for shard in shards}
    assert len(counts) == 1
    assert all(count > 0 for count in counts.pop())
    for number, size in enumerate(shards[0]["global_batch_sizes"]):
        members = [
            index
            for shard in shards
            for batch in shard["micro_batch_indices"][number]
            for index in _global(shard, batch)
        ]
        assert size == len(members)
        tokens = sum(sum(data["loss_masks"][index]) for index in members)
        assert all(shard["global_token_counts"][number] == tokens for shard in shards)


@given(batches())
def test_caps_hold_except_for_a_single_long_sample(case: tuple[dict[str, Any], int, Arguments]) -> None:
    data, ranks, args = case
    for shard in split_by_dp(data, ranks, args):
        for batch in (batch for step in shard["micro_batch_indices"] for batch in step):
            lengths = [shard["total_lengths"][index] for index in batch]
            ranks_of_a_sample = args.context_parallel_size
            held = sum(padded_length(length, ranks_of_a_sample) // ranks_of_a_sample for length in lengths)
            if args.use_dynamic_batch_size:
                assert held <= args.max_tokens_per_gpu or len(batch) == 1
            else:
                assert len(batch) <= args.micro_batch_size


def test_padding_for_context_parallel_ranks_counts() -> None:
    """Samples of 5 tokens become 8, of which each of two ranks holds 4: three of them fit 14 tokens, not five."""
    args = arguments(max_tokens_per_gpu=14, context_parallel_size=2, global_batch_size=6)
    [shard] = split_by_dp(convert(args, [sample(index) for index in range(6)]), 1, args)
    assert [len(batch) for batch in shard["micro_batch_indices"][0]] == [3, 3]


def test_a_micro_batch_has_as_many_samples_as_the_flag_says() -> None:
    for size, expected in ((1, [1] * 6), (3, [3, 3]), (4, [4, 2])):
        args = arguments(use_dynamic_batch_size=False, micro_batch_size=size, global_batch_size=6)
        [shard] = split_by_dp(convert(args, [sample(index) for index in range(6)]), 1, args)
        assert sorted(map(len, shard["micro_batch_indices"][0]), reverse=True) == expected


def _global(shard: dict[str, Any], batch: list[int]) -> list[int]:
    return [shard["partition"][index] for index in batch]


def test_tokens_are_balanced_over_ranks() -> None:
    args = arguments(global_batch_size=16, max_tokens_per_gpu=40)
    data = convert(args, [sample(index, 10, 10) for index in range(16)])
    loads = [sum(shard["total_lengths"]) for shard in split_by_dp(data, 4, args)]
    assert loads == [80, 80, 80, 80]


def test_what_does_not_fill_a_batch_is_dropped_or_a_last_step() -> None:
    assert [list(step) for step in steps_of(5, arguments(global_batch_size=2))] == [[0, 1], [2, 3]]
    trimming_off = arguments(global_batch_size=2, disable_rollout_trim_samples=True)
    assert [len(step) for step in steps_of(5, trimming_off)] == [2, 2, 1]
    dynamic = arguments(use_dynamic_global_batch_size=True, num_steps_per_rollout=2)
    assert [len(step) for step in steps_of(7, dynamic)] == [3, 3]
    with pytest.raises(ValueError, match="--global-batch-size is 4"):
        steps_of(3, arguments(global_batch_size=4))


def test_a_key_that_only_some_samples_have_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"rollout_log_probs is missing on samples \[1\]"):
        convert(arguments(), [sample(0), sample(1, rollout_log_probs=None)])
    assert "rollout_log_probs" not in convert(arguments(), [sample(0, rollout_log_probs=None)])


def test_a_teacher_may_be_missing_on_some_samples() -> None:
    data = convert(arguments(), [sample(0), sample(1, teacher_log_probs=[-1.0, -2.0])])
    assert data["teacher_log_probs"] == [None, [-1.0, -2.0]]
    assert "teacher_log_probs" not in convert(arguments(), [sample(0)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_mask": [1]}, "sample 7: loss_mask has 1 entries"),
        ({"rollout_log_probs": [-1.0]}, "sample 7: rollout_log_probs has 1 entries"),
        ({"teacher_log_probs": [-1.0] * 3}, "sample 7: teacher_log_probs has 3 entries"),
        ({"response_length": 9}, "sample 7: response_length 9 does not fit 5 tokens"),
        ({"tokens": [3, 4]}, "sample 7: all 2 tokens are response; add a prompt token before them"),
        ({"rollout_routed_experts": []}, "sample 7: rollout_routed_experts needs --use-rollout-routing-replay"),
        ({"reward": None}, "sample 7 has no reward"),
        ({"reward": float("inf")}, "sample 7: the reward inf is not a finite number"),
    ],
)
def test_wrong_lengths_name_the_sample(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert(arguments(), [sample(7, **changes)])


def test_removed_samples_stay_with_a_mask_of_zeros() -> None:
    assert convert(arguments(), [sample(0, remove_sample=True)])["loss_masks"] == [[0, 0]]


def test_an_empty_response_needs_no_logprobs() -> None:
    empty = sample(0, response=0, remove_sample=True, rollout_log_probs=None)
    assert convert(arguments(), [empty, sample(1)])["rollout_log_probs"] == [[], [-0.5, -0.5]]
    silent = sample(1, rollout_log_probs=None)
    for nothing in (empty, sample(0, response=0)):
        assert "rollout_log_probs" not in convert(arguments(), [nothing, silent])
    assert "rollout_log_probs" not in convert(arguments(), [empty])


def test_groups_are_normalised_and_a_group_of_one_keeps_its_reward() -> None:
    samples = [
        sample(0, reward=1, group_index=0),
        sample(1, reward=3, group_index=0),
        sample(2, reward=5, group_index=1),
    ]
    raw, rewards = post_process_rewards(arguments(grpo_std_normalization=False), samples)
    assert raw == [1, 3, 5]
    assert rewards == [-1, 1, 5]
    _, scaled = post_process_rewards(arguments(), samples)
    assert scaled == pytest.approx([-(0.5**0.5), 0.5**0.5, 5], abs=1e-5)
    assert post_process_rewards(arguments(rewards_normalization=False), samples)[1] == raw


def test_groups_without_a_difference_are_counted() -> None:
    equal = [sample(index, reward=1.0, group_index=0) for index in range(2)]
    mixed = [sample(2, reward=0.0, group_index=1), sample(3, reward=1.0, group_index=1)]
    single = [sample(4, reward=1.0, group_index=2)]
    assert constant_groups(arguments(), equal + mixed + single) == [1.0]
    metrics = rollout_metrics(arguments(rollout_num_gpus=1), equal + mixed + single, 1.0)
    assert metrics["rollout/constant_groups"] == metrics["rollout/zero_std/count_1"] == 1


def test_metrics_describe_the_batch_and_its_age() -> None:
    samples = [
        sample(0, response=2, reward=1.0, weight_versions=["3", "4"]),
        sample(1, response=4, reward=0.0, weight_versions=["5"], status=Sample.Status.TRUNCATED),
    ]
    metrics = rollout_metrics(arguments(rollout_num_gpus=2), samples, 3.0)
    assert metrics["rollout/response_len/mean"] == 3
    assert metrics["rollout/truncated_ratio"] == 0.5
    assert metrics["rollout/raw_reward"] == 0.5
    assert metrics["perf/tokens_per_gpu_per_sec"] == metrics["perf/effective_tokens_per_gpu_per_sec"] == 1.0
    assert metrics["perf/longest_sample_tokens_per_sec"] == 4 / 3
    assert not [name for name in metrics if "non_generation" in name or "cache" in name]
    ages = staleness(oldest_versions(samples), "6")
    assert ages == {"rollout/staleness_min": 1, "rollout/staleness_mean": 2.0, "rollout/staleness_max": 3}
    assert staleness(oldest_versions([sample(0, weight_versions=["default"])]), "6") == {}
    samples[1].weight_spans, samples[0].weight_spans = [["5", 0, 4]], [["3", 0, 1], ["4", 1, 2]]
    assert staleness(oldest_versions(samples), "6")["rollout/token_staleness_mean"] == 6 - (3 + 4 + 4 * 5) / 6
    assert [one.index for one in flatten([[samples[0]], [[samples[1]]]])] == [0, 1]
