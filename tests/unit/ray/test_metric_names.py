"""Metrics have the names of the contract (4.11), each with the number that the name says."""

from __future__ import annotations

import random

import pytest
import torch

from lab.testkit.trainer import trainer_args
from slime.algorithms.losses import LOSSES
from slime.algorithms.losses.reduce import make_reducer
from slime.args import Arguments
from slime.backends.trainer.metrics import forward_flops, speeds, step_flops
from slime.ray.reports import Reports
from slime.rollout.metrics import field_means, is_repetitive, rollout_metrics
from slime.rollout.train_data import convert
from slime.updates.update import Update
from slime.utils import logging_utils
from slime.utils.types import Sample
from tests.unit.ray.test_trajectories import arguments, sample


def test_masked_tokens_are_no_effective_ones() -> None:
    samples = [sample(0, 0, 4, loss_mask=[1, 0, 0, 1]), sample(0, 1, 6)]
    metrics = rollout_metrics(arguments(rollout_num_gpus=1), samples, 2.0)
    assert metrics["perf/tokens_per_gpu_per_sec"] == 5.0
    assert metrics["perf/effective_tokens_per_gpu_per_sec"] == 4.0
    samples[1].loss_mask = [0] * 6
    metrics = rollout_metrics(arguments(rollout_num_gpus=1), samples, 2.0)
    assert metrics["perf/longest_sample_tokens_per_sec"] == 3.0
    assert metrics["perf/effective_longest_sample_tokens_per_sec"] == 1.0


def test_time_outside_the_engine_and_its_cache() -> None:
    samples = [sample(0, n, 2, non_generation_time=float(n)) for n in range(3)]
    samples[0].prefix_cache_info.cached_tokens, samples[0].prefix_cache_info.total_prompt_tokens = 6, 8
    metrics = rollout_metrics(arguments(rollout_num_gpus=1), samples, 1.0)
    found = {name: metrics[f"perf/non_generation_time/{name}"] for name in ("mean", "median", "max", "min")}
    assert found == {"mean": 1.0, "median": 1.0, "max": 2.0, "min": 0.0}
    assert metrics["rollout/prefix_cache_hit_rate"] == 0.75
    assert metrics["rollout/avg_cached_tokens_per_sample"] == 2.0


def test_groups_of_equal_rewards_are_counted_by_the_rounded_reward() -> None:
    rewards = {0: 0.125, 1: 0.1375, 2: -0.01, 3: 1.0}
    samples = [sample(group, number, 2, reward) for group, reward in rewards.items() for number in (0, 1)]
    metrics = rollout_metrics(arguments(rollout_num_gpus=1), samples, 1.0)
    found = {name: count for name, count in metrics.items() if name.startswith("rollout/zero_std/")}
    assert found == {f"rollout/zero_std/count_{reward}": count for reward, count in (("0.1", 2), ("0", 1), ("1", 1))}


def test_what_the_trainer_gets() -> None:
    samples = [
        sample(0, 0, 2, 1.0, metadata={"raw_reward": 3.0}),
        sample(0, 1, 4, 0.0, status=Sample.Status.TRUNCATED),
    ]
    means = field_means(convert(arguments(), samples))
    assert means["rollout/rewards"] == pytest.approx(0.0)
    assert {name: means[f"rollout/{name}"] for name in ("raw_reward", "response_lengths", "total_lengths")} == {
        "raw_reward": 1.5,
        "response_lengths": 3.0,
        "total_lengths": 5.0,
    }
    assert means["rollout/truncated"] == 0.5
    assert field_means({"tokens": [[1]], "rewards": [2.0]}) == {"rollout/rewards": 2.0}
    assert field_means({"raw_reward": [{"score": 1.0}], "truncated": [None], "rewards": [2.0]}) == {
        "rollout/rewards": 2.0
    }


def test_a_reply_that_repeats_itself_is_found() -> None:
    words = random.Random(0)
    essay = " ".join(str(words.randrange(10**6)) for _ in range(300))
    assert is_repetitive("I will now think again. " * 100)
    assert not is_repetitive(essay)
    assert not is_repetitive("ha" * 10)
    samples = [sample(0, 0, 2), sample(0, 1, 2)]
    samples[0].response, samples[1].response = "no, " * 500, essay
    metrics = rollout_metrics(arguments(rollout_num_gpus=1), samples, 1.0)
    assert metrics["rollout/repetition_frac"] == 0.5


def test_the_mean_ratio_to_the_old_policy() -> None:
    batch = {"log_probs": [torch.tensor([0.5, 0.25]).log()], "advantages": [torch.ones(2)]}
    masks = [torch.ones(2)]
    batch |= {"loss_masks": masks, "response_lengths": [2], "total_lengths": [3]}
    reduce = make_reducer(False, [2], masks)
    new = [torch.tensor([0.25, 0.5]).log()]
    _, metrics = LOSSES["policy_loss"](trainer_args(""), batch, new, [torch.zeros(2)], reduce)
    assert float(metrics["ois"]) == pytest.approx((0.5 + 2.0) / 2)


def test_the_share_of_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    monkeypatch.setattr(logging_utils, "log", lambda args, metrics, step_key: rows.append(metrics))
    batch = {"rollout_batch_size": 1, "n_samples_per_prompt": 1, "global_batch_size": 1}
    reports = Reports(Arguments(**batch))
    reports.update(Update(0, {}, {"steps": [{"train/loss": 1.0}], "perf/train_time": 2.0}, waited=1.0), 3.0, "1")
    assert (rows[0]["perf/step_time"], rows[0]["perf/train_wait_time"], rows[0]["perf/wait_time_ratio"]) == (3, 1, 0.25)
    reports.update(Update(1, {"rollout/samples": 1}, {}), 0.0, "1")
    assert "perf/wait_time_ratio" not in rows[2]


CONFIG = {"hidden_size": 4, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 10, "intermediate_size": 6}


def test_arithmetic_of_a_forward_pass_by_hand() -> None:
    # per layer: q, k, v, o of 4 x 4 and three matrices of 4 x 6: 64 + 72 = 136 weights; two layers; 3 tokens
    attention = 2 * 4 * 2 * (2**2 + 1**2)
    head = 2 * 4 * 10 * 1
    assert forward_flops(CONFIG, [2, 1], [1, 0]) == 2 * 272 * 3 + attention + head
    grouped = CONFIG | {"num_key_value_heads": 1, "head_dim": 3}  # q, o of 4 x 6, k, v of 4 x 3
    assert forward_flops({"text_config": grouped}, [1], [0]) == 2 * 2 * (72 + 72) + 2 * 6 * 2
    experts = CONFIG | {"num_experts_per_tok": 2, "moe_intermediate_size": 5}
    assert forward_flops(experts, [1], [0]) == 2 * 2 * (64 + 3 * 4 * 10) + 2 * 4 * 2


def test_a_step_is_three_forward_passes_and_frozen_weights_take_two() -> None:
    assert step_flops(CONFIG, [2, 1], [1, 0]) == 3 * forward_flops(CONFIG, [2, 1], [1, 0])
    # frozen: 2 x 2 x (272 weights + head of 40); attention 3 x 16; q, k, v, o of 4 + 4, three of 4 + 6, rank 5, two layers
    assert step_flops(CONFIG, [1], [1], lora_rank=5) == 4 * (272 + 40) + 3 * 16 + 6 * 5 * 2 * (4 * 8 + 3 * 10)


def test_speeds_of_the_phases_that_ran() -> None:
    found = speeds({"log_probs": 2.0, "actor_train": 3.0, "update_weights": 1.0}, 4e12, 9e12, 60)
    assert found == {
        "perf/log_probs_tflops": 2.0,
        "perf/actor_train_tflops": 3.0,
        "perf/actor_train_tok_per_s": 20.0,
    }
