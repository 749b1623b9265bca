"""The loss of practice against plain float64: each sample adds the policy loss or the distillation, never both."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lab.testkit.trainer import trainer_args
from slime.algorithms.losses.custom import custom_loss
from slime.algorithms.losses.practice import practice_loss
from slime.algorithms.losses.reduce import make_reducer
from tests.helpers.tolerance import assert_near

VOCABULARY, K, PROMPT = 23, 5, 3
RESPONSES = [4, 6, 2]
TEMPERATURE, KL_COEF = 0.7, 0.3


def make_batch(taught: list[bool], seed: int = 3) -> tuple[dict[str, Any], Tensor]:
    """A micro-batch whose samples have a teacher or not, and its logits; the last response token of each is masked."""
    generator = torch.Generator().manual_seed(seed)

    def streams() -> list[Tensor]:
        return [-torch.rand(length, generator=generator) - 1.0 for length in RESPONSES]

    totals = [PROMPT + length for length in RESPONSES]
    teachers = [torch.randn(length, VOCABULARY, generator=generator).log_softmax(-1).topk(K) for length in RESPONSES]
    masks = [torch.ones(length) for length in RESPONSES]
    for mask in masks:
        mask[-1] = 0.0
    data = {
        "unconcat_tokens": [torch.randint(0, VOCABULARY, (total,), generator=generator) for total in totals],
        **{"total_lengths": totals, "response_lengths": RESPONSES, "loss_masks": masks},
        **{"log_probs": streams(), "ref_log_probs": streams(), "advantages": streams()},
        "teacher_topk_indices": [top.indices if own else None for top, own in zip(teachers, taught, strict=True)],
        "teacher_topk_log_probs": [top.values if own else None for top, own in zip(teachers, taught, strict=True)],
    }
    if not any(taught):
        data |= {"teacher_topk_indices": None, "teacher_topk_log_probs": None}
    return data, torch.randn(1, sum(totals), VOCABULARY, generator=generator)


def reference(data: dict[str, Any], logits: Tensor) -> Tensor:
    """The sum of sample means, written out in float64."""
    total, end = logits.new_zeros((), dtype=torch.float64), 0
    ids_of = data["teacher_topk_indices"] or [None] * len(RESPONSES)
    for n, (tokens, response) in enumerate(zip(data["unconcat_tokens"], RESPONSES, strict=True)):
        end += len(tokens)
        rows = logits[0, end - response - 1 : end - 1]
        if ids_of[n] is not None:
            p = torch.softmax(rows, -1)
            inside, q = p.gather(-1, ids_of[n]), data["teacher_topk_log_probs"][n].double().exp()
            outside = p.scatter(-1, ids_of[n], 0.0).sum(-1, keepdim=True)
            p, q = torch.cat([inside, outside], -1), torch.cat([q, 1 - q.sum(-1, keepdim=True)], -1)
            values = (p * (p.log() - q.log())).sum(-1)
        else:
            own = torch.log_softmax(rows / TEMPERATURE, -1).gather(-1, tokens[-response:, None])[:, 0]
            ratio, advantage = (own - data["log_probs"][n].double()).exp(), data["advantages"][n].double()
            clipped = ratio.clamp(1 - 0.2, 1 + 0.28)
            behind = data["ref_log_probs"][n].double() - own
            values = -torch.minimum(ratio * advantage, clipped * advantage)
            values = values + KL_COEF * (behind.exp() - 1 - behind)
        mask = data["loss_masks"][n].double()
        total = total + (values * mask).sum() / mask.sum()
    return total


def outcome(data: dict[str, Any], logits: Tensor, **changes: Any) -> tuple[Tensor, dict[str, Tensor]]:
    settings: dict[str, Any] = {"loss_type": "custom_loss", "rollout_temperature": TEMPERATURE, "eps_clip_high": 0.28}
    settings |= {"use_kl_loss": True, "kl_loss_coef": KL_COEF, "kl_loss_type": "k3", **changes}
    reduce = make_reducer(False, data["response_lengths"], data["loss_masks"])
    return custom_loss(practice_loss, trainer_args("", **settings), data, logits, reduce)


@pytest.mark.parametrize("taught", [[True, False, True], [True] * 3, [False] * 3], ids=["mixed", "practice", "turns"])
def test_loss_and_gradient_are_those_of_float64(taught: list[bool]) -> None:
    data, logits = make_batch(taught)
    leaf, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
    loss, metrics = outcome(data, leaf)
    wanted = reference(data, exact)
    assert_near(loss, wanted, magnitude=20.0)
    assert_near(torch.autograd.grad(loss, leaf)[0], torch.autograd.grad(wanted, exact)[0], magnitude=20.0)
    assert ("topk_kl" in metrics) == any(taught)
    assert float(metrics["loss"]) == float(loss)


def test_a_practised_reply_has_no_policy_loss_whatever_its_advantage() -> None:
    data, logits = make_batch([True, False, True])
    loss, _ = outcome(data, logits)
    data["advantages"] = [values * (9.0 if n != 1 else 1.0) for n, values in enumerate(data["advantages"])]
    assert float(outcome(data, logits)[0]) == float(loss)
    with pytest.raises(ValueError, match="remove --custom-pg-loss-reducer-function-path"):
        outcome(data, logits, custom_pg_loss_reducer_function_path="a.b")


@pytest.mark.parametrize("taught", [[True, False, True], [True] * 3], ids=["mixed", "practice"])
def test_the_entropy_that_a_fuse_reads_is_of_practised_replies_too(taught: list[bool]) -> None:
    data, logits = make_batch(taught)
    end, expected = 0, 0.0
    for tokens, response, mask in zip(data["unconcat_tokens"], RESPONSES, data["loss_masks"], strict=True):
        end += len(tokens)
        rows = logits[0, end - response - 1 : end - 1].double() / TEMPERATURE
        entropies = torch.distributions.Categorical(logits=rows).entropy()
        expected += float((entropies * mask).sum() / mask.sum())
    assert_near(outcome(data, logits)[1]["entropy_loss"], torch.tensor(expected), magnitude=10.0)
