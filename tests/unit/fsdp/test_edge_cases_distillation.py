"""Empty responses, masked samples and very long ones under the losses on K tokens, as instructions/algorithms.md says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lab.testkit.trainer import trainer_args
from slime.algorithms.losses.custom import custom_loss
from slime.algorithms.losses.hybrid_distillation import hybrid_loss
from slime.algorithms.losses.practice import practice_loss
from slime.algorithms.losses.reduce import make_reducer
from slime.algorithms.losses.topk_distillation import forward_topk_distillation_loss, topk_distillation_loss
from tests.helpers.tolerance import assert_near

LOSSES = [topk_distillation_loss, forward_topk_distillation_loss, hybrid_loss, practice_loss]
VOCABULARY, K, PROMPT = 11, 3, 2
LONG = 4_000


def make_batch(responses: list[int], masks: list[int]) -> tuple[dict[str, Any], Tensor]:
    """A micro-batch of samples with ``responses`` tokens, all of them under the sample's mask, and its logits."""
    generator = torch.Generator().manual_seed(0)

    def streams(*shape: int) -> list[Tensor]:
        return [-torch.rand(length, *shape, generator=generator) - 1.0 for length in responses]

    totals = [PROMPT + length for length in responses]
    ids = [torch.rand(length, VOCABULARY, generator=generator).topk(K).indices for length in responses]
    data = {
        "unconcat_tokens": [torch.randint(0, VOCABULARY, (total,), generator=generator) for total in totals],
        "total_lengths": totals,
        "response_lengths": responses,
        "loss_masks": [torch.full((length,), mask) for length, mask in zip(responses, masks, strict=True)],
        "teacher_topk_indices": ids,
        "teacher_topk_log_probs": streams(K),
        "rollout_topk_log_probs": streams(K),
        "log_probs": streams(),
        "advantages": streams(),
    }
    return data, torch.randn(1, sum(totals), VOCABULARY, generator=generator)


def part(data: dict[str, Any], count: int) -> dict[str, Any]:
    return {name: values[:count] for name, values in data.items()}


def loss_and_gradient(function: Callable[..., Any], data: dict[str, Any], logits: Tensor) -> tuple[float, Tensor]:
    logits = logits.detach().clone().requires_grad_()
    args = trainer_args("", loss_type="custom_loss", opd_kl_coef=1.0)
    reduce = make_reducer(False, data["response_lengths"], data["loss_masks"])
    loss, _ = custom_loss(function, args, data, logits, reduce)
    return float(loss.detach()), torch.autograd.grad(loss, logits)[0]


@pytest.mark.parametrize("function", LOSSES)
@pytest.mark.parametrize("length", [0, 4])
def test_an_empty_and_a_masked_sample_add_nothing(function: Callable[..., Any], length: int) -> None:
    data, logits = make_batch([5, length], [1, 0])
    own = PROMPT + 5
    alone, gradient = loss_and_gradient(function, part(data, 1), logits[:, :own])
    both, longer = loss_and_gradient(function, data, logits)
    assert_near(both, alone)
    assert_near(longer[:, :own], gradient)
    assert not longer[:, own:].any()


@pytest.mark.parametrize("function", LOSSES)
@pytest.mark.parametrize("length", [0, 4])
def test_a_batch_of_nothing_else_has_loss_zero_and_gradient_zero(function: Callable[..., Any], length: int) -> None:
    data, logits = make_batch([length], [0])
    loss, gradient = loss_and_gradient(function, data, logits)
    assert loss == 0.0
    assert not gradient.any()


@pytest.mark.parametrize("function", LOSSES)
def test_a_very_long_sample_weighs_as_much_as_a_short_one(function: Callable[..., Any]) -> None:
    one, logits = make_batch([1], [1])
    short, _ = loss_and_gradient(function, one, logits)
    same = {name: [repeated(values[0])] for name, values in one.items() if torch.is_tensor(values[0])}
    same["unconcat_tokens"] = [
        torch.cat([one["unconcat_tokens"][0][:PROMPT], repeated(one["unconcat_tokens"][0][-1:])])
    ]
    same |= {"total_lengths": [PROMPT + LONG], "response_lengths": [LONG]}
    rows = torch.cat([logits[:, :1], logits[:, 1:2].expand(1, LONG, -1), logits[:, 2:]], dim=1)
    long, _ = loss_and_gradient(function, same, rows)
    assert_near(long, short, roundings=LONG)


def repeated(values: Tensor) -> Tensor:
    """A stream of one token for ``LONG`` of them."""
    return values.repeat(LONG, *[1] * (values.dim() - 1))
