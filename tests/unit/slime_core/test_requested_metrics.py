"""Metrics that are logged on request, and shares of dumped rollouts."""

from __future__ import annotations

import pytest

from slime.args import Arguments
from slime.ray.rollout import subsample
from slime.rollout.metrics import rollout_metrics
from slime.utils.types import Sample


def sample(index: int, group: int | None, reward: object, response: int = 2, mask: list[int] | None = None) -> Sample:
    return Sample(
        index=index,
        group_index=group,
        reward=reward,
        tokens=[1] * (3 + response),
        response_length=response,
        loss_mask=mask,
        metadata={"round_number": index + 1},
    )


SAMPLES = [
    sample(0, 0, {"acc": 1.0, "why": "fine"}, 4, [1, 0, 0, 1]),
    sample(1, 0, {"acc": 0.0, "why": "format"}),
    sample(2, 1, {"acc": 0.0, "why": "format"}),
    sample(3, 1, {"acc": 0.0, "why": "wrong"}),
]


def metrics(**flags: object) -> dict[str, float]:
    return rollout_metrics(Arguments(reward_key="acc", **flags), SAMPLES, 1.0)


def test_nothing_is_added_without_a_flag() -> None:
    assert not [name for name in metrics() if name.startswith(("multi_turn/", "passrate/", "error_cat/"))]
    assert "rollout/correct_samples" not in metrics()


def test_turns_with_and_without_observations() -> None:
    found = metrics(log_multi_turn=True)
    assert found["multi_turn/raw_response_length/max"] == 4
    assert found["multi_turn/wo_obs_response_length/max"] == 2
    assert found["multi_turn/raw_response_length/mean"] == 2.5
    assert (found["multi_turn/round_number/min"], found["multi_turn/round_number/max"]) == (1, 4)


def test_pass_rates_are_the_unbiased_estimate() -> None:
    found = metrics(log_passrate=True)
    assert found["passrate/pass@1"] == pytest.approx((0.5 + 0.0) / 2)
    assert found["passrate/pass@2"] == pytest.approx((1.0 + 0.0) / 2)
    assert "passrate/pass@4" not in found


def test_categories_and_correct_samples() -> None:
    found = metrics(log_reward_category="why", log_correct_samples=True)
    assert (found["error_cat/format"], found["error_cat/wrong"], found["error_cat/fine"]) == (0.5, 0.25, 0.25)
    assert (found["rollout/correct_samples"], found["rollout/correct_response_lengths"]) == (1, 4)
    assert found["rollout/correct_total_lengths"] == 7
    assert not [name for name in metrics(log_reward_category="missing") if name.startswith("error_cat/")]


def test_a_share_of_a_dump_keeps_groups_whole_from_both_ends() -> None:
    samples = [sample(index, index // 2, 1.0) for index in range(12)]
    assert subsample(samples, None) == samples
    assert [s.index for s in subsample(samples, 0.5)] == [0, 1, 2, 3, 10, 11]
    assert [s.index for s in subsample(samples, 0.01)] == [0, 1]
    assert subsample(samples, 1.0) == samples
    alone = [sample(index, None, 1.0) for index in range(4)]
    assert [s.index for s in subsample(alone, 0.5)] == [0, 3]
