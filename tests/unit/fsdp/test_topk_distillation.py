"""Distillation on a support of K tokens: by hand, against float64, and as custom losses on a batch."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lab.testkit.trainer import trainer_args
from slime.algorithms.losses import LOSSES
from slime.algorithms.losses.custom import custom_loss
from slime.algorithms.losses.hybrid_distillation import hybrid_loss, support_surrogate
from slime.algorithms.losses.reduce import make_reducer
from slime.algorithms.losses.topk_distillation import (
    forward_kl,
    forward_topk_distillation_loss,
    reverse_kl,
    topk_distillation_loss,
    with_tail,
)
from slime.backends.trainer.micro_batch import RolloutShard
from slime.logprobs.packed_logits import get_log_probs_and_entropy
from slime.rollout.train_data import convert, split_by_dp
from slime.utils.types import Sample
from slime.utils.vocab_parallel import log_probs_of_ids
from tests.helpers.tolerance import assert_near
from tests.unit.ray.test_trajectories import arguments

VOCABULARY, K = 30, 4
LARGEST = 10.0
"""Of the logits, whose differences are the ratios of a KL."""


def buckets(row: Tensor, ids: list[int]) -> list[float]:
    """Probabilities of ``ids`` and of the rest, in plain floats."""
    probabilities = torch.softmax(row.double(), -1).tolist()
    found = [probabilities[token] for token in ids]
    return [*found, sum(p for token, p in enumerate(probabilities) if token not in ids)]


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True))


def test_by_hand() -> None:
    # student 1/2, 1/4 and a tail of 1/4; teacher 1/4, 1/4 and a tail of 1/2
    student, teacher = torch.tensor([[0.5, 0.25]]).log(), torch.tensor([[0.25, 0.25]]).log()
    assert_near(with_tail(student).exp(), torch.tensor([[0.5, 0.25, 0.25]]))
    assert_near(reverse_kl(student, teacher), [0.5 * math.log(2) - 0.25 * math.log(2)])
    assert_near(forward_kl(student, teacher), [-0.25 * math.log(2) + 0.5 * math.log(2)])
    assert float(reverse_kl(student, student)) == 0.0


@pytest.mark.parametrize("chunk", [-1, 1, 3])
@pytest.mark.parametrize("reverse", [True, False])
def test_the_kl_and_its_gradient_are_those_of_float64(reverse: bool, chunk: int) -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(7, VOCABULARY, generator=generator, dtype=torch.float64) * 2
    teacher = logits + torch.randn(7, VOCABULARY, generator=generator, dtype=torch.float64)
    ids = teacher.topk(K).indices
    on_support = torch.log_softmax(teacher, -1).gather(-1, ids)
    expected = [
        kl(*((buckets(z, i), buckets(t, i)) if reverse else (buckets(t, i), buckets(z, i))))
        for z, t, i in zip(logits, teacher, ids.tolist(), strict=True)
    ]
    leaf = logits.float().requires_grad_()
    found = (reverse_kl if reverse else forward_kl)(log_probs_of_ids(leaf, ids, None, chunk), on_support.float())
    assert_near(found, expected, magnitude=LARGEST)
    [gradient] = torch.autograd.grad(found.sum(), leaf)
    exact = logits.clone().requires_grad_()
    [wanted] = torch.autograd.grad(_exact(exact, ids, on_support, reverse=reverse), exact)
    assert_near(gradient, wanted, magnitude=LARGEST)


def _exact(logits: Tensor, ids: Tensor, teacher: Tensor, *, reverse: bool) -> Tensor:
    """The sum of the KLs with the tail's probability added up token by token."""
    probabilities = torch.softmax(logits, -1)
    inside = probabilities.gather(-1, ids)
    outside = probabilities.scatter(-1, ids, 0.0).sum(-1, keepdim=True)
    p = torch.cat([inside, outside], -1)
    q = torch.cat([teacher.exp(), 1 - teacher.exp().sum(-1, keepdim=True)], -1)
    p, q = (p, q) if reverse else (q, p)
    return (p * (p.log() - q.log())).sum()


@pytest.mark.parametrize("divergence", [reverse_kl, forward_kl])
def test_more_tokens_come_closer_to_the_kl_over_the_vocabulary(divergence: Callable[[Tensor, Tensor], Tensor]) -> None:
    generator = torch.Generator().manual_seed(6)
    student, teacher = torch.randn(2, 5, VOCABULARY, generator=generator).log_softmax(-1)
    p, q = (student, teacher) if divergence is reverse_kl else (teacher, student)
    whole = (p.exp() * (p - q)).sum(-1)
    order = teacher.argsort(-1, descending=True)
    found = [divergence(student.gather(-1, order[:, :k]), teacher.gather(-1, order[:, :k])) for k in (1, 4, 16, 30)]
    for fewer, more in zip(found, [*found[1:], whole + 1e-4], strict=True):
        assert (fewer <= more + 1e-5).all()
    assert_near(found[-1], whole, magnitude=LARGEST)


def test_a_support_that_holds_everything_has_a_finite_gradient() -> None:
    student = torch.tensor([[0.0, -40.0]], requires_grad=True)
    loss = reverse_kl(student, torch.tensor([[-0.5, -0.9327]])).sum()
    assert math.isfinite(float(loss.detach()))
    assert torch.autograd.grad(loss, student)[0].isfinite().all()


def batch(teachers: list[bool]) -> tuple[dict[str, Any], Tensor, Tensor]:
    """A micro-batch out of the trainer's own shard, its logits, and the teacher's; some samples have no teacher."""
    rng, generator = random.Random(1), torch.Generator().manual_seed(2)
    lengths = [(2 + n, 1 + 2 * n) for n in range(len(teachers))]
    total = sum(prompt + response for prompt, response in lengths)
    logits = torch.randn(1, total, VOCABULARY, generator=generator)
    teacher_logits = logits[0] + torch.randn(total, VOCABULARY, generator=generator)
    samples, end = [], 0
    for n, ((prompt, response), has_teacher) in enumerate(zip(lengths, teachers, strict=True)):
        end += prompt + response
        rows = slice(end - response - 1, end - 1)
        found = torch.log_softmax(teacher_logits[rows], -1).topk(K)
        sampler = torch.log_softmax(logits[0, rows] / 0.7 + 0.1, -1)
        tokens = [rng.randrange(VOCABULARY) for _ in range(prompt + response)]
        one = Sample(index=n, tokens=tokens, response_length=response, reward=1.0)
        one.rollout_log_probs = [-2.0] * response
        if has_teacher:
            one.teacher_topk_log_probs, one.teacher_topk_indices = found.values, found.indices
            one.rollout_topk_log_probs = sampler.gather(-1, found.indices)  # pyright: ignore[reportAttributeAccessIssue]
        samples.append(one)
    args = arguments(global_batch_size=len(samples), max_tokens_per_gpu=10_000)
    shard = RolloutShard(split_by_dp(convert(args, samples), 1, args)[0])
    order = shard.fields["sample_indices"]
    shard.set_computed("log_probs", [torch.full((lengths[n][1],), -2.0) for n in order])
    shard.set_computed("advantages", [torch.ones(lengths[n][1]) for n in order])
    starts = [sum(map(sum, lengths[:n])) for n in range(len(lengths))]
    rows = [row for n in order for row in range(starts[n], starts[n] + sum(lengths[n]))]
    return shard.batch(list(range(len(samples))), torch.device("cpu")), logits[:, rows], teacher_logits[rows]


def reduced(function: Any, data: dict[str, Any], logits: Tensor, **changes: Any) -> tuple[Tensor, dict[str, Tensor]]:
    args = trainer_args("", loss_type="custom_loss", **changes)
    reduce = make_reducer(False, data["response_lengths"], data["loss_masks"], data["rollout_mask_sums"])
    return custom_loss(function, args, data, logits, reduce)


@pytest.mark.parametrize("reverse", [True, False])
def test_the_custom_loss_is_the_mean_kl_of_samples_with_a_teacher(reverse: bool) -> None:
    data, logits, teacher_logits = batch([True, False, True])
    function = topk_distillation_loss if reverse else forward_topk_distillation_loss
    loss, metrics = reduced(function, data, logits)
    expected, end = 0.0, 0
    for tokens, response, ids in zip(
        data["unconcat_tokens"], data["response_lengths"], data["teacher_topk_indices"], strict=True
    ):
        end += len(tokens)
        for t in range(response if ids is not None else 0):
            row = end - response - 1 + t
            # both at temperature 1, although the run samples at 0.7
            p, q = buckets(logits[0, row], ids[t].tolist()), buckets(teacher_logits[row], ids[t].tolist())
            expected += (kl(p, q) if reverse else kl(q, p)) / response
    assert_near(loss, expected)
    assert metrics["topk_kl"] == loss
    assert 0 < float(metrics["topk_tail"]) < 2


def test_a_student_that_is_its_teacher_has_nothing_to_learn() -> None:
    """Whatever the sampling temperature is: a loss at 0.7 against a teacher at 1 would flatten the policy step by step."""
    data, logits, _ = batch([True, True])
    end = 0
    for n, (tokens, response) in enumerate(zip(data["unconcat_tokens"], data["response_lengths"], strict=True)):
        end += len(tokens)
        own = torch.log_softmax(logits[0, end - response - 1 : end - 1], -1)
        data["teacher_topk_log_probs"][n] = own.gather(-1, data["teacher_topk_indices"][n])
    logits.requires_grad_()
    loss, _ = reduced(topk_distillation_loss, data, logits, rollout_temperature=0.5)
    assert_near(loss, 0.0)
    [gradient] = torch.autograd.grad(loss, logits)
    assert_near(gradient, torch.zeros_like(gradient))


def test_a_sample_without_a_teacher_has_no_gradient_and_no_sample_with_one_is_an_error() -> None:
    data, logits, _ = batch([True, False])
    logits.requires_grad_()
    [gradient] = torch.autograd.grad(reduced(topk_distillation_loss, data, logits)[0], logits)
    lengths = [len(tokens) for tokens in data["unconcat_tokens"]]
    for part, ids in zip(gradient[0].split(lengths), data["teacher_topk_indices"], strict=True):
        assert bool(part.any()) == (ids is not None)
    none, logits, _ = batch([False, False])
    with pytest.raises(ValueError, match="needs teacher_topk_log_probs"):
        reduced(topk_distillation_loss, none, logits)


def test_the_hybrid_loss_of_a_batch_without_a_teacher_is_the_policy_loss() -> None:
    """Finding B2: a live batch may hold verdicts without a hint only, which is no reason to stop the run."""
    data, logits, _ = batch([False, False])
    loss, metrics = reduced(hybrid_loss, data, logits)
    assert (float(metrics["opd_loss"]), float(metrics["opd_share"])) == (0.0, 0.0)
    assert_near(loss, metrics["pg_loss"])
    mixed, logits, _ = batch([True, False, True])
    assert_near(reduced(hybrid_loss, mixed, logits)[1]["opd_share"], 2.0)
    mixed["rollout_topk_log_probs"] = None
    with pytest.raises(ValueError, match="needs rollout_topk_log_probs"):
        reduced(hybrid_loss, mixed, logits)
    with pytest.raises(ValueError, match="remove --use-opd"):
        reduced(hybrid_loss, data, logits, use_opd=True)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_teacher_that_is_the_sampling_policy_teaches_nothing(temperature: float) -> None:
    data, logits, _ = batch([True, True])
    end = 0
    for n, (tokens, response) in enumerate(zip(data["unconcat_tokens"], data["response_lengths"], strict=True)):
        end += len(tokens)
        own = torch.log_softmax(logits[0, end - response - 1 : end - 1].double() / temperature, -1)
        on_support = own.gather(-1, data["teacher_topk_indices"][n]).float()
        data["teacher_topk_log_probs"][n] = data["rollout_topk_log_probs"][n] = on_support
        data["advantages"][n] = torch.zeros(response)
    logits.requires_grad_()
    loss, metrics = reduced(hybrid_loss, data, logits, rollout_temperature=temperature)
    assert float(metrics["opd_loss"]) == 0.0
    [gradient] = torch.autograd.grad(loss, logits)
    assert not gradient.any()


def test_a_token_that_the_policy_gave_no_probability_teaches_nothing() -> None:
    """The engine gives such a token the lowest float, whose ratio overflows."""
    old = torch.tensor([[0.0, -3.4028234663852886e38]])
    new = torch.tensor([[-0.1, -3.0]], requires_grad=True)
    losses, _ = support_surrogate(trainer_args(""), new, old, torch.tensor([[-0.5, -1.0]]))
    [gradient] = torch.autograd.grad(losses.sum(), new)
    assert_near(losses.detach(), [0.5 * math.exp(-0.1)])
    assert_near(gradient[0], [0.5 * math.exp(-0.1), 0.0])


def test_the_bounds_of_the_hybrid_surrogate() -> None:
    old, teacher = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.5 * math.exp(-3.0), 0.5]]).log()
    new = old + torch.tensor([[5.0, 0.0]])
    assert_near(support_surrogate(trainer_args(""), new, old, teacher)[0], [0.5 * math.exp(5.0)], magnitude=148.0)
    assert_near(support_surrogate(trainer_args("", eps_clip_c=3.0), new, old, teacher)[0], [0.5 * 3.0])
    assert_near(support_surrogate(trainer_args("", opd_clip=0.25), old, old, teacher)[0], [0.5 * 0.25])


def test_the_hybrid_surrogate_by_hand() -> None:
    # weights 2/3 and 1/3; differences ln 4 (bounded to 1) and -ln 2; ratios 2 (clipped to 1.28) and 1
    old, teacher = torch.tensor([[0.4, 0.2]]).log(), torch.tensor([[1.6, 0.1]]).log()
    losses, clipped = support_surrogate(trainer_args(""), torch.tensor([[0.8, 0.2]]).log(), old, teacher)
    assert_near(losses, [-(1.28 * 2 / 3 - math.log(2) / 3)])
    assert clipped.tolist() == [0.5]


def test_the_hybrid_loss_is_the_policy_loss_and_the_surrogate_on_the_support() -> None:
    data, logits, _ = batch([True, False, True])
    logits.requires_grad_()
    args = trainer_args("", opd_kl_coef=0.5)
    reduce = make_reducer(False, data["response_lengths"], data["loss_masks"])
    lists = {name: data[name] for name in ("unconcat_tokens", "total_lengths", "response_lengths")}
    _, output = get_log_probs_and_entropy(logits, args=args, **lists, with_entropy=True)
    policy, _ = LOSSES["policy_loss"](args, data, output["log_probs"], output["entropy"], reduce)
    expected, end = policy, 0
    for tokens, response, ids, teacher, old in zip(
        data["unconcat_tokens"],
        data["response_lengths"],
        *(data[name] for name in ("teacher_topk_indices", "teacher_topk_log_probs", "rollout_topk_log_probs")),
        strict=True,
    ):
        end += len(tokens)
        for t in range(response if ids is not None else 0):
            new = torch.log_softmax(logits[0, end - response - 1 + t].double() / 0.7, -1)[ids[t]]
            weights = torch.softmax(old[t].double(), -1)
            advantages = weights * (teacher[t] - old[t]).double().clamp(-1, 1)
            ratio = torch.exp(new - old[t])
            objective = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
            expected = expected - 0.5 * objective.sum() / response
    loss, metrics = reduced(hybrid_loss, data, logits, opd_kl_coef=0.5)
    assert_near(loss, expected)
    assert {"pg_loss", "opd_loss", "opd_clipfrac", "loss"} <= set(metrics)
    [found], [wanted] = torch.autograd.grad(loss, logits), torch.autograd.grad(expected, logits)
    assert_near(found, wanted)
