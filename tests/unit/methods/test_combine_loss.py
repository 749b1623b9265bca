"""The custom Combine loss is the built-in loss with the teacher's term: same number, same gradient."""

from __future__ import annotations

from typing import Any

import combine_loss
import pytest
import torch
from combine_loss import combine_loss_function
from openclaw_combine_method import Config

from lab.testkit.trainer import trainer_args
from slime.algorithms.advantages import compute_advantages
from slime.algorithms.losses.policy_loss import policy_loss
from slime.algorithms.losses.reduce import make_reducer
from slime.args import Arguments
from slime.logprobs.packed_logits import get_log_probs_and_entropy
from tests.helpers.tolerance import assert_near

VOCABULARY = 17
TOTALS, RESPONSES = [9, 6, 11], [4, 1, 7]


def arguments(**changes: Any) -> Arguments:
    values = {"rollout_temperature": 0.6, "log_probs_chunk_size": -1, "kl_loss_coef": 0.3, "kl_loss_type": "low_var_kl"}
    return trainer_args("", **{**values, "opd_kl_coef": 0.7, **changes})


def micro_batch(args: Arguments) -> tuple[dict[str, Any], torch.Tensor]:
    """Random logits and a batch of three samples, the second without a teacher, one token masked."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, sum(TOTALS), VOCABULARY, generator=generator)
    tokens = [torch.randint(0, VOCABULARY, (total,), generator=generator) for total in TOTALS]
    _, output = get_log_probs_and_entropy(
        logits, args=args, unconcat_tokens=tokens, total_lengths=TOTALS, response_lengths=RESPONSES
    )
    old = [values + 0.3 * torch.randn(values.shape, generator=generator) for values in output["log_probs"]]
    teacher = [values + 0.5 * torch.randn(values.shape, generator=generator) for values in old]
    masks = [torch.ones(length) for length in RESPONSES]
    masks[2][3] = 0.0
    batch = {
        "unconcat_tokens": tokens,
        "total_lengths": TOTALS,
        "response_lengths": RESPONSES,
        "loss_masks": masks,
        "log_probs": old,
        "rollout_log_probs": [values.clone() for values in old],
        "ref_log_probs": [values - 0.1 for values in old],
        "teacher_log_probs": [teacher[0], None, teacher[2]],
        "rewards": [1.0, -1.0, 0.0],
    }
    return batch, logits.requires_grad_()


def built_in(args: Arguments, batch: dict[str, Any], logits: torch.Tensor, reduce: Any) -> torch.Tensor:
    with_opd = args.changed(use_opd=True)
    batch = {**batch, "advantages": compute_advantages(with_opd, batch)[0]}
    _, output = get_log_probs_and_entropy(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=TOTALS,
        response_lengths=RESPONSES,
        with_entropy=True,
    )
    return policy_loss(args, batch, output["log_probs"], output["entropy"], reduce)[0]


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_kl_loss": True},
        {"entropy_coef": 0.05},
        {"use_rollout_logprobs": True},
        {"opd_kl_coef": 0.0},
        {"opd_clip": 0.1},
    ],
)
def test_same_loss_and_gradient(changes: dict[str, Any], per_token: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    args = arguments(**changes)
    monkeypatch.setattr(combine_loss, "own_config", lambda: Config(w_opd=args.opd_kl_coef))
    batch, logits = micro_batch(args)
    reduce = make_reducer(per_token, RESPONSES, batch["loss_masks"])
    expected = built_in(args, batch, logits, reduce)
    [expected_gradient] = torch.autograd.grad(expected, logits)
    loss, metrics = combine_loss_function(
        args, {**batch, "advantages": compute_advantages(args, batch)[0]}, logits, reduce
    )
    [gradient] = torch.autograd.grad(loss, logits)
    assert_near(loss, expected)
    assert_near(gradient, expected_gradient)
    assert gradient.abs().sum() > 0
    assert not any(value.requires_grad for value in metrics.values())
    assert metrics["loss"] == loss.detach()


def test_without_any_teacher_it_is_plain_policy_loss() -> None:
    args = arguments()
    batch, logits = micro_batch(args)
    batch["teacher_log_probs"] = None
    reduce = make_reducer(False, RESPONSES, batch["loss_masks"])
    batch["advantages"] = compute_advantages(args, batch)[0]
    loss, metrics = combine_loss_function(args, batch, logits, reduce)
    assert_near(loss, built_in(args, batch, logits, reduce))
    assert metrics["opd_reverse_kl"] == 0.0


@pytest.mark.parametrize(("flag", "words"), [("use_opd", "--use-opd"), ("use_tis", "--use-tis")])
def test_flags_that_do_not_go_with_it_are_refused(flag: str, words: str) -> None:
    args = arguments()
    batch, logits = micro_batch(args)
    setattr(args, flag, True)
    with pytest.raises(ValueError, match=words):
        combine_loss_function(args, batch, logits, lambda values: values.sum())


def test_the_environment_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    combine_loss.own_config.cache_clear()
    monkeypatch.setenv("OPENCLAW_COMBINE_W_OPD", "0.4")
    assert combine_loss.own_config().w_opd == 0.4
    monkeypatch.setenv("OPENCLAW_COMBINE_W_OPD", "not a number")
    assert combine_loss.own_config().w_opd == 0.4
    combine_loss.own_config.cache_clear()
