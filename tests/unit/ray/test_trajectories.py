"""Samples that are pieces of one rollout: they are found, stay in one step, count once, and share a reward."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from lab.testkit.trainer import trainer_args
from slime.algorithms.advantages import compute_advantages
from slime.algorithms.losses.reduce import make_reducer, rebuild_reducer
from slime.args import Arguments
from slime.backends.trainer.micro_batch import RolloutShard
from slime.rollout.rewards import constant_groups, mask_sums, post_process_rewards, rollout_ids
from slime.rollout.train_data import convert, samples_of_steps, split_by_dp
from slime.utils.types import Sample


def arguments(**changes: Any) -> Arguments:
    values = {
        "rewards_normalization": True,
        "grpo_std_normalization": True,
        "dynamic_history": False,
        "custom_reward_post_process_path": None,
        "reward_key": None,
        "global_batch_size": 2,
    }
    return trainer_args("").changed(**(values | changes))


def sample(group: int, index: int, response: int, reward: float = 1.0, **changes: Any) -> Sample:
    tokens = list(range(response + 2))
    return Sample(group_index=group, index=index, tokens=tokens, response_length=response, reward=reward, **changes)


# One group of three trajectories: of two samples, of one, and of three.
TREE = [sample(0, 0, 2), sample(0, 0, 4), sample(0, 1, 3), sample(0, 2, 1), sample(0, 2, 5), sample(0, 2, 3)]


def test_pieces_of_a_rollout_are_found() -> None:
    assert rollout_ids(TREE) == [0, 0, 1, 2, 2, 2]
    named = [sample(0, 0, 1, rollout_id=7), sample(0, 1, 1, rollout_id=7), sample(0, 0, 1)]
    assert rollout_ids(named) == [0, 0, 1]
    assert rollout_ids([Sample(), Sample(), Sample(index=0), Sample(index=0)]) == [0, 1, 2, 3]
    assert mask_sums([0, 0, 1], [[1, 0], [1, 1], [0]]) == [3, 3, 0]


def test_a_step_has_whole_rollouts_and_counts_them() -> None:
    data = convert(arguments(), TREE)
    steps, sizes = samples_of_steps(data, arguments(disable_rollout_trim_samples=True))
    assert (steps, sizes) == ([[0, 1, 2], [3, 4, 5]], [2, 1])
    del data["rollout_ids"]
    assert samples_of_steps(data, arguments())[1] == [2, 2, 2]
    two_steps = arguments(global_batch_size=99, num_steps_per_rollout=3, dynamic_history=True)
    assert samples_of_steps(convert(two_steps, TREE), two_steps)[1] == [1, 1, 1]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_long_trajectory_weighs_as_much_as_a_short_one(ranks: int) -> None:
    args = arguments(global_batch_size=3, max_tokens_per_gpu=9)
    rng = random.Random(0)
    values = {n: [rng.random() for _ in range(one.response_length)] for n, one in enumerate(TREE)}
    shards = split_by_dp(convert(args, TREE), ranks, args)
    total = 0.0
    for shard in shards:
        data = RolloutShard(shard)
        for indices in data.micro_batches[0]:
            batch = data.batch(indices, torch.device("cpu"))
            if not indices:
                continue
            reduce = make_reducer(False, batch["response_lengths"], batch["loss_masks"], batch["rollout_mask_sums"])
            flat = [value for i in indices for value in values[shard["partition"][i]]]
            total += float(reduce(torch.tensor(flat, dtype=torch.float64)))
    rollouts = [values[0] + values[1], values[2], values[3] + values[4] + values[5]]
    expected = sum(sum(tokens) / len(tokens) for tokens in rollouts) / 3
    assert total / shards[0]["global_batch_sizes"][0] == pytest.approx(expected, abs=1e-12)


def test_a_rejection_divides_by_what_is_left_only_where_that_is_known() -> None:
    batch = {
        "response_lengths": [2, 2],
        "loss_masks": [torch.ones(2), torch.ones(2)],
        "rollout_mask_sums": [2, 5],
    }
    kept = [torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0])]
    reduce = rebuild_reducer(False, batch, kept)
    assert float(reduce(torch.tensor([3.0, 9.0, 0.0, 9.0]))) == pytest.approx(3.0)
    assert float(reduce(torch.tensor([0.0, 9.0, 3.0, 9.0]))) == pytest.approx(3 / 5)


def test_a_trajectory_has_one_reward_in_its_group() -> None:
    rewards = [1.0, 1.0, 4.0, 7.0, 0.0, 7.0]
    samples = [sample(0, one.index or 0, 2, reward) for one, reward in zip(TREE, rewards, strict=True)]
    args = arguments(dynamic_history=True, grpo_std_normalization=False)
    # 1, 4 and 7, the first of each; the mean is 4
    assert post_process_rewards(args, samples) == (rewards, [-3.0, -3.0, 0.0, 3.0, 3.0, 3.0])
    assert post_process_rewards(arguments(grpo_std_normalization=False), samples)[1][0] == pytest.approx(1 - 20 / 6)


def test_one_trajectory_of_many_steps_is_a_group_of_one() -> None:
    samples = [sample(0, 0, 2, 0.5), sample(0, 0, 3, 0.5)]
    args = arguments(dynamic_history=True)
    assert post_process_rewards(args, samples)[1] == [0.5, 0.5]
    assert constant_groups(args, samples) == []
    assert len(constant_groups(arguments(), samples)) == 1


def steps(scores: list[float], spans: list[list[int]], **more: Any) -> dict[str, Any]:
    return {"step_wise": {"step_scores": scores, "step_token_spans": spans, **more}}


def step_advantages(samples: list[Sample], **changes: Any) -> list[list[float]]:
    args = arguments(advantage_estimator="step_wise", global_batch_size=len(samples), **changes)
    data = RolloutShard(split_by_dp(convert(args, samples), 1, args)[0])
    return [values.tolist() for values in compute_advantages(args, data.fields)[0]]


def test_step_wise_credit_by_hand() -> None:
    samples = [
        sample(0, 0, 5, loss_mask=[1, 1, 0, 1, 1], metadata=steps([1.0, 0.5], [[0, 2], [2, 4]])),
        sample(0, 1, 3, metadata=steps([3.0], [[1, 3]])),
        sample(1, 2, 2, metadata=steps([9.0, 9.0], [[0, 1], [1, 2]], step_scores_with_outcome=[2.0, -2.0])),
    ]
    # group 0, step 0: 1 and 3 become -1 and 1; its step 1 has no peer; group 1 is alone; masked and other tokens get 0
    expected = [[-1.0, -1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [2.0, -2.0]]
    for found, wanted in zip(step_advantages(samples), expected, strict=True):
        assert found == pytest.approx(wanted, abs=1e-5)
    raw = step_advantages(samples, rewards_normalization=False)
    assert raw == [[1.0, 1.0, 0.0, 0.5, 0.0], [0.0, 3.0, 3.0], [2.0, -2.0]]


def test_steps_with_equal_scores_have_no_advantage_and_indices_may_be_given() -> None:
    equal = [sample(0, n, 2, metadata=steps([0.7], [[0, 2]])) for n in range(3)]
    assert step_advantages(equal) == [[0.0, 0.0]] * 3
    apart = [sample(0, n, 2, metadata=steps([0.5], [[0, 2]], step_indices=[n])) for n in range(3)]
    assert step_advantages(apart) == [[0.0, 0.0]] * 3
    removed = sample(0, 1, 2, remove_sample=True, metadata=steps([0.9], [[0, 2]]))
    assert step_advantages([sample(0, 0, 2, metadata=steps([0.5], [[0, 2]])), removed])[0] == [0.5, 0.5]


def test_a_sample_per_step_needs_no_spans() -> None:
    samples = [
        sample(0, 0, 3, 1.0, loss_mask=[0, 1, 1]),
        sample(0, 1, 2, 3.0),
        sample(0, 2, 2, 9.0, remove_sample=True),
    ]
    expected = [[0.0, -1.0, -1.0], [1.0, 1.0], [0.0, 0.0]]
    for found, wanted in zip(step_advantages(samples, dynamic_history=True), expected, strict=True):
        assert found == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "sample 4.*needs step_scores.*add --dynamic-history"),
        (steps([1.0], [[0, 1], [1, 2]]), "1 scores, 2 spans and 1 indices"),
        (steps([1.0, 2.0], [[0, 2], [1, 3]]), r"span \[1, 3\) overlaps"),
        (steps([1.0], [[0, 9]]), r"span \[0, 9\).*does not fit 3 response tokens"),
    ],
)
def test_steps_that_do_not_fit_name_the_sample(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        step_advantages([sample(0, 4, 3, metadata=metadata)])


def test_a_custom_conversion_without_steps_is_named() -> None:
    args = arguments(advantage_estimator="step_wise")
    with pytest.raises(ValueError, match="--custom-convert-samples-to-train-data-path"):
        compute_advantages(args, {"loss_masks": [torch.ones(1)], "response_lengths": [1]})
