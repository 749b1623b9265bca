"""Filters of the core."""

from __future__ import annotations

import pytest

from slime.args import Arguments
from slime.rollout.filter_hub.base_types import DynamicFilterOutput, should_drop_dynamic_filter_output
from slime.rollout.filter_hub.dynamic_sampling_filters import check_reward_nonzero_std
from slime.rollout.filter_hub.sample_filters import mask_truncated
from slime.utils.types import Sample

ARGS = Arguments(reward_key="score")


@pytest.mark.parametrize(
    ("rewards", "keep", "reason"),
    [
        ([1.0, 0.0], True, None),
        ([1.0, 1.0], False, "zero_std_1.0"),
        ([0.0, 0.0, 0.0], False, "zero_std_0.0"),
        ([0, 0], False, "zero_std_0"),
        ([{"score": -1.0}, {"score": -1.0}], False, "zero_std_-1.0"),
        ([{"score": -1.0}, {"score": 0.5}], True, None),
        ([1.0], True, None),
        ([1.0, None], True, None),
        ([0.1 + 0.2, 0.3], False, "zero_std_0.3"),
    ],
)
def test_groups_of_equal_rewards_are_dropped(rewards: list, keep: bool, reason: str | None) -> None:
    group = [Sample(reward=reward) for reward in rewards]
    assert check_reward_nonzero_std(ARGS, group) == DynamicFilterOutput(keep, reason)
    assert check_reward_nonzero_std(ARGS, [group[:1], group[1:]]) == DynamicFilterOutput(keep, reason)


def test_truncated_samples_lose_their_loss() -> None:
    long = Sample(status=Sample.Status.TRUNCATED)
    short = Sample(status=Sample.Status.COMPLETED)
    removed = Sample(status=Sample.Status.COMPLETED, remove_sample=True)
    mask_truncated(ARGS, [[long, short], [[removed]]])
    assert [sample.remove_sample for sample in (long, short, removed)] == [True, False, True]


@pytest.mark.parametrize("spare", [False, True])
@pytest.mark.parametrize("remaining", [0, 1, 2, 3])
def test_a_rejected_group_is_needed_while_a_batch_would_be_short(spare: bool, remaining: int) -> None:
    sizes = {"remaining_batch_size": remaining, "target_data_size": 2}
    kept = DynamicFilterOutput(keep=True, keep_when_insufficient=spare)
    assert not should_drop_dynamic_filter_output(kept, **sizes)
    rejected = DynamicFilterOutput(keep=False, keep_when_insufficient=spare)
    assert should_drop_dynamic_filter_output(rejected, **sizes) == (not spare or remaining > 2)
