"""What a service gets of a batch has the value and the gradient of our own loss, and only tokens and numbers that were sampled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lab.testkit.trainer import trainer_args
from openclaw.training.rollout import why_no_datum
from slime.algorithms.losses import LOSSES
from slime.algorithms.losses.reduce import make_reducer
from slime.args import Arguments
from slime.backends.tinker_utils import datums
from slime.backends.trainer.micro_batch import RolloutShard
from slime.clients.losses import token_losses
from slime.clients.models import HIGH, LOW
from slime.rollout.train_data import convert, split_by_dp
from slime.utils.types import Sample
from tests.helpers.tolerance import assert_near

pytest.importorskip("tinker", reason="install the tinker extra")

LENGTHS = [(5, 4), (3, 6), (2, 1)]
"""Tokens of prompt and reply of each sample."""


def sample(number: int, prompt: int, reply: int, **changes: Any) -> Sample:
    generator = torch.Generator().manual_seed(number)
    made = Sample(
        index=number,
        tokens=torch.randint(5, 90, (prompt + reply,), generator=generator).tolist(),
        response_length=reply,
        reward=[1.0, -1.0, 0.5][number % 3],
        loss_mask=[1] * reply,
        rollout_log_probs=(-torch.rand(reply, generator=generator) * 3).tolist(),
        teacher_log_probs=(-torch.rand(reply, generator=generator) * 3).tolist(),
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def arguments(**changes: Any) -> Arguments:
    values = {
        **{"use_rollout_logprobs": True, "use_opd": True, "opd_kl_coef": 0.5, "opd_clip": 0.7, "reward_key": None},
        **{"rewards_normalization": False, "eps_clip": 0.2, "eps_clip_high": 0.28, "rollout_batch_size": len(LENGTHS)},
        **{"n_samples_per_prompt": 1, "tinker_loss": "ppo", "kl_loss_coef": 0.0, "use_kl_loss": False},
        **{"rollout_temperature": 1.0, "context_parallel_size": 1},
    }
    return trainer_args("/nowhere", **{**values, **changes})


def shard_of(args: Arguments, samples: list[Sample]) -> RolloutShard:
    [shard] = split_by_dp(convert(args, samples), 1, args)
    return RolloutShard(shard)


@pytest.mark.parametrize("loss", ["ppo", "cispo"])
@pytest.mark.parametrize("per_token", [False, True])
def test_the_sum_of_the_service_is_our_loss_with_its_gradient(loss: str, per_token: bool) -> None:
    args = arguments(
        tinker_loss=loss, calculate_per_token_loss=per_token, advantage_estimator="cispo" if loss == "cispo" else "grpo"
    )
    samples = [sample(number, *lengths) for number, lengths in enumerate(LENGTHS)]
    samples[1].loss_mask = [1, 0, 1, 1, 0, 1]
    data = shard_of(args, samples)
    datums.with_advantages(args, data, None)
    step = datums.step_data(args, data, 0)
    order = data.micro_batches[0]
    numbers = [number for batch in order for number in batch]
    assert step.samples == numbers
    new = [
        (data.fields["log_probs"][n].double() + 0.3 * torch.randn(len(data.fields["log_probs"][n]))).requires_grad_()
        for n in numbers
    ]

    batch = {name: [values[n] for n in numbers] for name, values in data.fields.items()}
    lengths = [len(row) for row in new]
    masks, sums = batch["loss_masks"], batch["rollout_mask_sums"]
    reduce = make_reducer(per_token, lengths, masks, sums)
    entropies = [torch.zeros(length, dtype=torch.float64) for length in lengths]
    total, _ = LOSSES["policy_loss"](args, batch, new, entropies, reduce)
    ours = total / (data.global_token_counts[0] if per_token else data.global_batch_sizes[0])
    expected = torch.autograd.grad(ours, new)

    config = datums.loss_config(args)
    theirs = torch.zeros((), dtype=torch.float64)
    for row, datum in zip(new, step.datums, strict=True):
        sent = {name: torch.tensor(tensor.tolist()) for name, tensor in datum.loss_fn_inputs.items()}
        assert datum.model_input.to_ints() == data.tokens[step.samples[step.datums.index(datum)]][:-1]
        whole = torch.cat([torch.zeros(len(sent["advantages"]) - len(row), dtype=torch.float64), row])
        bounds = {
            name: torch.full_like(whole, config[key])
            for name, key in ((LOW, "clip_low_threshold"), (HIGH, "clip_high_threshold"))
        }
        inputs = {"logprobs": sent["logprobs"].double(), "advantages": sent["advantages"].double(), **bounds}
        theirs = theirs + token_losses(loss, whole, inputs).sum()
    found = torch.autograd.grad(theirs, new)
    assert_near(theirs.detach().reshape(1), ours.detach().reshape(1))
    for mine, other in zip(found, expected, strict=True):
        assert_near(mine, other)


def test_ids_are_those_that_were_sampled_and_a_prompt_has_no_advantage() -> None:
    args = arguments()
    data = shard_of(args, [made := sample(0, 5, 4)])
    datums.with_advantages(args, data, None)
    [datum] = datums.step_data(args, data, 0).datums
    sent = {name: tensor.tolist() for name, tensor in datum.loss_fn_inputs.items()}
    assert datum.model_input.to_ints() == made.tokens[:-1]
    assert sent["target_tokens"] == made.tokens[1:]
    assert sent["advantages"][:4] == [0.0] * 4
    assert all(sent["advantages"][4:])
    assert sent["logprobs"][:4] == [0.0] * 4
    assert_near(torch.tensor(sent["logprobs"][4:]), torch.tensor(made.rollout_log_probs))


def test_a_sample_without_anything_to_learn_is_not_sent() -> None:
    args = arguments(use_opd=False)
    data = shard_of(args, [sample(0, 5, 4, reward=0.0), sample(1, 3, 2)])
    datums.with_advantages(args, data, None)
    step = datums.step_data(args, data, 0)
    assert step.samples == [1]
    metrics = datums.rollout_metrics(data)
    assert metrics["rollout/signal_share"] == 0.5
    assert metrics["rollout/loss_tokens"] == 6.0


def test_the_penalty_pulls_towards_the_model_as_it_was() -> None:
    args = arguments(use_opd=False, use_kl_loss=True, kl_loss_coef=0.25)
    data = shard_of(args, [made := sample(0, 5, 4)])
    base = torch.tensor([-1.0, -2.0, -3.0, -0.5])
    datums.with_advantages(args, data, [base])
    expected = 1.0 - 0.25 * (torch.tensor(made.rollout_log_probs) - base)
    assert_near(data.fields["advantages"][0], expected)


def test_metrics_come_from_the_services_log_probabilities() -> None:
    args = arguments()
    data = shard_of(args, [sample(0, 5, 4)])
    datums.with_advantages(args, data, None)
    step = datums.step_data(args, data, 0)
    new = data.fields["log_probs"][0] + torch.tensor([0.0, 0.5, -0.5, 0.0])
    output = {"logprobs": torch.cat([torch.full((4,), -9.0), new])}
    metrics = datums.step_metrics(args, data, step, [output])
    assert metrics["train_rollout_logprob_abs_diff"] == pytest.approx(0.25)
    assert metrics["train_rollout_logprob_diff_max"] == pytest.approx(0.5)
    assert metrics["pg_clipfrac"] == pytest.approx(0.5)
    assert metrics["entropy_loss"] == pytest.approx(-float(new.mean()))
    with pytest.raises(ValueError, match="for 3 of 8 tokens"):
        datums.step_metrics(args, data, step, [{"logprobs": torch.zeros(3)}])
    with pytest.raises(ValueError, match="0 of 1 samples"):
        datums.step_metrics(args, data, step, [])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rollout_log_probs": None}, "0 log probabilities for 4 tokens"),
        ({"rollout_log_probs": [-1.0] * 3}, "3 log probabilities for 4 tokens"),
        ({"rollout_log_probs": [-1.0, -1.0, float("nan"), -1.0]}, "not a finite number"),
        ({"multimodal_train_inputs": {"pixel_values": [1]}}, "pictures"),
        ({"tokens": [1, 2, 3, 4]}, "no token before the reply"),
        ({}, "9 tokens, and the service trains on 7"),
    ],
)
def test_what_cannot_be_sent_has_a_reason(changes: dict[str, Any], why: str) -> None:
    assert why in str(why_no_datum(sample(0, 5, 4, **changes), 7 if not changes else None))


def test_what_can_be_sent_has_none() -> None:
    assert why_no_datum(sample(0, 5, 4), 8) is None
