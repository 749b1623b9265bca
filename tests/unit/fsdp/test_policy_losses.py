"""Every surrogate, correction, KL estimator and reducer against float64, and on numbers small enough for a hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lab.testkit.trainer import trainer_args
from slime.algorithms.losses import LOSSES
from slime.algorithms.losses.reduce import make_reducer
from slime.algorithms.losses.rejection import sequence_rejection
from tests.helpers.reference_policy import random_batch, reference_policy_loss
from tests.helpers.tolerance import assert_near

ICEPOP = "slime.algorithms.losses.rejection.icepop_function"
TOKENS = "slime.algorithms.losses.rejection.token_rejection"
SEQUENCES = "slime.algorithms.losses.rejection.sequence_rejection"
DR_GRPO = "slime.algorithms.losses.reduce.constant_denominator"
BAND: dict[str, Any] = {"use_tis": True, "tis_clip": 1.3, "tis_clip_low": 0.8}
LARGEST = 5.0
"""Of the log probabilities of `random_batch`, whose differences are ratios."""
CASES: dict[str, dict[str, Any]] = {
    "ppo": {},
    "gspo": {"advantage_estimator": "gspo"},
    "cispo": {"advantage_estimator": "cispo"},
    "dual clip": {"eps_clip_c": 1.4},
    "gspo, dual clip": {"advantage_estimator": "gspo", "eps_clip_c": 1.01},
    "opsm": {"use_opsm": True, "opsm_delta": 0.01},
    "cispo, opsm, tis": {"advantage_estimator": "cispo", "use_opsm": True, "opsm_delta": 0.01, **BAND},
    "tis": BAND,
    "icepop": {"custom_tis_function_path": ICEPOP, **BAND},
    "token rejection": {"custom_tis_function_path": TOKENS, **BAND},
    "sequence rejection": {
        "custom_tis_function_path": SEQUENCES,
        "use_tis": True,
        "tis_clip": 1.05,
        "tis_clip_low": 0.9,
    },
    "rejection, entropy, kl": {
        "custom_tis_function_path": TOKENS,
        "entropy_coef": 0.1,
        "use_kl_loss": True,
        "kl_loss_coef": 0.2,
        **BAND,
    },
    "dr.grpo": {"custom_pg_loss_reducer_function_path": DR_GRPO, "rollout_max_response_len": 40},
    **{
        f"{kind}{', unbiased' if unbiased else ''}": {
            "use_kl_loss": True,
            "kl_loss_coef": 0.3,
            "kl_loss_type": kind,
            "use_unbiased_kl": unbiased,
        }
        for kind in ("k1", "k2", "k3", "low_var_kl")
        for unbiased in (False, True)
    },
}


def cast(values: Any) -> Any:
    """Lists of float64 tensors as float32, the rest as it is."""
    if isinstance(values, list):
        return [cast(value) for value in values]
    return values.float() if isinstance(values, Tensor) and values.is_floating_point() else values


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_float64(name: str, per_token: bool) -> None:
    if per_token and name == "dr.grpo":
        with pytest.raises(ValueError, match="remove --calculate-per-token-loss"):
            loss_of(trainer_args("", **CASES[name], calculate_per_token_loss=True), *random_batch(0, [3]))
        return
    args = trainer_args("", **CASES[name], calculate_per_token_loss=per_token)
    batch, new, entropy = random_batch(7, [5, 1, 12, 8, 30])
    entropy = [value.requires_grad_() for value in entropy]
    new = [value.requires_grad_() for value in new]
    expected = reference_policy_loss(args, batch, new, entropy)
    expected_gradients = torch.autograd.grad(expected, new)
    moved = [value.detach().float().requires_grad_() for value in new]
    loss, _ = loss_of(args, {key: cast(value) for key, value in batch.items()}, moved, cast(entropy))
    assert_near(loss, expected, magnitude=LARGEST)
    assert_near(torch.autograd.grad(loss, moved), expected_gradients, magnitude=LARGEST)


def loss_of(
    args: Any, batch: dict[str, Any], new: list[Tensor], entropy: list[Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    reduce = make_reducer(args.calculate_per_token_loss, batch["response_lengths"], batch["loss_masks"])
    return LOSSES["policy_loss"](args, batch, new, entropy, reduce)


@pytest.mark.parametrize("stream", ["new", "log_probs", "rollout_log_probs", "ref_log_probs"])
@pytest.mark.parametrize("name", CASES)
def test_a_token_that_two_policies_disagree_on_utterly_leaves_a_finite_gradient(name: str, stream: str) -> None:
    args = trainer_args("", **CASES[name])
    batch, new, entropy = random_batch(7, [5, 6])
    for row in (batch | {"new": new})[stream]:
        row[0], row[1] = -1000.0, -90.0
    moved = [value.float().requires_grad_() for value in new]
    loss, metrics = loss_of(args, {key: cast(value) for key, value in batch.items()}, moved, cast(entropy))
    assert all(bool(value.isfinite().all()) for value in (loss, *torch.autograd.grad(loss, moved), *metrics.values()))


def test_a_token_of_an_accepted_sequence_weighs_at_most_the_clip() -> None:
    trainer, engine = torch.full((1000,), -1.0), torch.full((1000,), -1.0)
    engine[0] = -6.0
    keywords = {
        "args": trainer_args("", use_tis=True, tis_clip=2.0, tis_clip_low=0.5),
        "pg_loss": torch.ones(1000),
        "train_log_probs": [trainer],
        "rollout_log_probs": [engine],
        "loss_masks": [torch.ones(1000)],
    }
    losses, masks, metrics = sequence_rejection(**keywords)
    assert float(masks[0].sum()) == 1000.0
    assert losses.tolist() == [2.0] + [1.0] * 999
    assert_near(metrics["tis"][0], math.exp(5.0), magnitude=LARGEST)


def test_every_case_differs_from_plain_ppo() -> None:
    batch, new, entropy = random_batch(7, [5, 1, 12, 8, 30])
    plain = float(reference_policy_loss(trainer_args(""), batch, new, entropy))
    for name in set(CASES) - {"ppo"}:
        found = float(reference_policy_loss(trainer_args("", **CASES[name]), batch, new, entropy))
        assert abs(found - plain) > 1e-4, name


def hand(
    advantage: float, shifts: list[float], rollout: list[float] | None = None, **changes: Any
) -> tuple[float, dict]:
    """Loss of one sample whose ratios are ``exp(shifts)``; its old log probabilities are all -1."""
    old = torch.full((len(shifts),), -1.0)
    batch = {
        "log_probs": [old],
        "advantages": [torch.full((len(shifts),), advantage)],
        "loss_masks": [torch.ones(len(shifts))],
        "response_lengths": [len(shifts)],
        "total_lengths": [len(shifts) + 1],
        "rollout_log_probs": None if rollout is None else [old - torch.tensor(rollout)],
    }
    args = trainer_args("", **changes)
    loss, metrics = loss_of(args, batch, [old + torch.tensor(shifts)], [torch.zeros(len(shifts))])
    return float(loss), {name: float(value) for name, value in metrics.items()}


def test_gspo_by_hand() -> None:
    # the token ratios are 4 and 1, the sequence's is their geometric mean 2, clipped to 1.28
    loss, metrics = hand(1.0, [math.log(4), 0.0], advantage_estimator="gspo")
    assert_near(loss, -1.28)
    assert metrics["pg_clipfrac"] == 1.0
    assert_near(hand(-1.0, [math.log(4), 0.0], advantage_estimator="gspo")[0], 2.0)
    # the first token would be clipped by PPO; the sequence's ratio is 1, so GSPO does not clip
    assert_near(hand(1.0, [math.log(4), -math.log(4)], advantage_estimator="gspo")[0], -1.0)


def test_cispo_by_hand() -> None:
    # weights 1.28 and 0.8 (of ratios 2 and 0.5), log probabilities -1 + ln 2 and -1 - ln 2
    loss, metrics = hand(1.0, [math.log(2), -math.log(2)], advantage_estimator="cispo")
    assert_near(loss, -(1.28 * (math.log(2) - 1) + 0.8 * (-math.log(2) - 1)) / 2)
    assert metrics["pg_clipfrac"] == 1.0


def test_a_token_beyond_the_clip_keeps_its_gradient_under_cispo_only() -> None:
    for estimator, expected in (("grpo", 0.0), ("cispo", -1.28)):
        new = torch.tensor([math.log(2) - 1.0], requires_grad=True)
        batch = {
            "log_probs": [torch.tensor([-1.0])],
            "advantages": [torch.tensor([1.0])],
            "loss_masks": [torch.ones(1)],
            "response_lengths": [1],
            "total_lengths": [2],
        }
        loss, _ = loss_of(trainer_args("", advantage_estimator=estimator), batch, [new], [torch.zeros(1)])
        assert_near(torch.autograd.grad(loss, new)[0], [expected])


def test_opsm_by_hand() -> None:
    # the mean of old minus new is 0.05: over a bound of 0.01, below one of 0.1
    shifts = [-0.1, 0.0]
    assert hand(-1.0, shifts, use_opsm=True, opsm_delta=0.01)[0] == 0.0
    assert hand(-1.0, shifts, use_opsm=True, opsm_delta=0.01)[1]["opsm_clipfrac"] == 1.0
    assert_near(hand(-1.0, shifts, use_opsm=True, opsm_delta=0.1)[0], (math.exp(-0.1) + 1) / 2)
    assert_near(hand(1.0, shifts, use_opsm=True, opsm_delta=0.01)[0], -(math.exp(-0.1) + 1) / 2)


@pytest.mark.parametrize(
    ("path", "expected"),
    # ratios of trainer to engine 3, 1, 1 with the band [0.5, 2]: clipped to 2; zeroed; left out; clipped to 2
    [(None, 4 / 3), (ICEPOP, 2 / 3), (TOKENS, 1.0), (SEQUENCES, 4 / 3)],
)
def test_corrections_by_hand(path: str | None, expected: float) -> None:
    changes = {"use_tis": True, "tis_clip_low": 0.5, "custom_tis_function_path": path}
    loss, metrics = hand(-1.0, [0.0] * 3, [math.log(3), 0.0, 0.0], **changes)
    assert_near(loss, expected)
    assert_near(metrics["tis"], 5 / 3)
    assert_near(metrics["tis_clipfrac"], 0.0 if path == SEQUENCES else 1 / 3)


def test_a_rejected_sequence_has_no_loss_at_all() -> None:
    changes = {"use_tis": True, "tis_clip_low": 0.9, "tis_clip": 1.1, "custom_tis_function_path": SEQUENCES}
    assert hand(-1.0, [0.0, 0.0], [math.log(2), 0.0], **changes, entropy_coef=0.5)[0] == 0.0


def test_mismatch_metrics_without_a_correction_leave_the_loss_alone() -> None:
    changes = {"get_mismatch_metrics": True, "tis_clip_low": 0.9, "custom_tis_function_path": TOKENS}
    loss, metrics = hand(-1.0, [0.0, 0.0], [math.log(3), 0.0], **changes)
    assert_near(loss, 1.0)
    assert_near(metrics["tis_clipfrac"], 0.5)
    with pytest.raises(ValueError, match="--get-mismatch-metrics needs rollout_log_probs"):
        hand(-1.0, [0.0], None, **changes)


def wrong_shape(**arguments: Any) -> Any:
    return arguments["pg_loss"][:1], arguments["loss_masks"], {}


def wrong_type(**arguments: Any) -> Any:
    return arguments["pg_loss"]


@pytest.mark.parametrize("name", ["wrong_shape", "wrong_type"])
def test_a_wrong_correction_is_named(name: str) -> None:
    path = f"tests.unit.fsdp.test_policy_losses.{name}"
    with pytest.raises((TypeError, ValueError), match=f"--custom-tis-function-path {path}"):
        hand(1.0, [0.0, 0.0], [0.0, 0.0], use_tis=True, custom_tis_function_path=path)


def test_dr_grpo_by_hand() -> None:
    # two samples of 2 and 4 tokens with losses of 1 per token; constant 8
    loss = hand(-1.0, [0.0] * 2, custom_pg_loss_reducer_function_path=DR_GRPO, rollout_max_response_len=8)[0]
    longer = hand(-1.0, [0.0] * 4, custom_pg_loss_reducer_function_path=DR_GRPO, rollout_max_response_len=8)[0]
    assert (loss, longer) == (pytest.approx(0.25), pytest.approx(0.5))
    with pytest.raises(ValueError, match="add --rollout-max-response-len"):
        hand(-1.0, [0.0], custom_pg_loss_reducer_function_path=DR_GRPO, rollout_max_response_len=None)


def first_token_only(total_lengths: Any, response_lengths: list[int], loss_masks: Any, calculate_per_token_loss: bool):
    """A reducer as its contract has it, without ``args``."""
    return lambda values: torch.stack([part[0] for part in values.split(response_lengths)]).sum()


def test_a_custom_reducer_reduces_the_policy_loss_and_nothing_else() -> None:
    path = "tests.unit.fsdp.test_policy_losses.first_token_only"
    loss, metrics = hand(-1.0, [math.log(2), 0.0], custom_pg_loss_reducer_function_path=path)
    assert_near(loss, 2.0)
    assert_near(metrics["ppo_kl"], -math.log(2) / 2)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_unbiased_estimators_have_the_true_kl_and_its_gradient(kind: str) -> None:
    """Summed over what another policy samples, ``pi/pi_old * k`` is KL(pi || ref), and so is its gradient."""
    from slime.utils.ppo_utils import compute_approx_kl

    generator = torch.Generator().manual_seed(3)
    logits, sampler, base = (torch.randn(9, generator=generator) for _ in range(3))
    logits.requires_grad_()
    policy, old, ref = (torch.log_softmax(x, 0) for x in (logits, sampler, base))
    estimate = (old.exp() * compute_approx_kl(policy, ref, kind, (policy - old).exp())).sum()
    exact = (policy.exp() * (policy - ref)).sum()
    assert_near(estimate, exact)
    [found], [wanted] = torch.autograd.grad(estimate, logits, retain_graph=True), torch.autograd.grad(exact, logits)
    assert_near(found, wanted)
