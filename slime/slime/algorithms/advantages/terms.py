"""Post-process any estimator's advantages: add the teacher's term, and whiten over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def teacher_terms(rollout: Mapping[str, Any], clip: float | None) -> list[Tensor | None]:
    """Return ``clip(log pi_teacher(a_t) - log pi_behaviour(a_t), -C, C)`` ``[R_i]`` per sample; None without a teacher.

    From ``teacher_log_probs`` and the log probabilities that the tokens were sampled with: ``rollout_log_probs``, or
    ``log_probs`` if the rollout has none. Recomputed log probabilities would add the policy's drift since then. One
    unlikely token has an unbounded term, which would outweigh the rewards of a whole batch; ``clip`` is ``--opd-clip``,
    None leaves the terms as they are.
    """
    teacher = rollout.get("teacher_log_probs")
    sampled = rollout.get("rollout_log_probs")
    behaviour = rollout["log_probs"] if sampled is None else sampled
    if teacher is None:
        return [None] * len(behaviour)
    return [None if t is None else _bounded(t - b.to(t.device), clip) for t, b in zip(teacher, behaviour, strict=True)]


def _bounded(values: Tensor, clip: float | None) -> Tensor:
    return values if clip is None else values.clamp(-clip, clip)


def add_opd_term(
    advantages: list[Tensor], rollout: Mapping[str, Any], coef: float, clip: float | None = None
) -> list[Tensor]:
    """Return new advantages ``[R_i]`` that include the teacher's term.

    ``A_t += coef * clip(log pi_teacher(a_t) - log pi_behaviour(a_t))``, see `teacher_terms`. A sample without a teacher
    keeps its advantage. This combines reward and on-policy distillation (OpenClaw-RL, arXiv 2603.10165, ``A_t = w_rl r +
    w_opd (log pi_T - log pi_old)``).
    """
    if rollout.get("teacher_log_probs") is None:
        return list(advantages)
    terms = teacher_terms(rollout, clip)
    return [a if term is None else a + coef * term for a, term in zip(advantages, terms, strict=True)]


_EPSILON = 1e-8

SumOverRanks = Callable[[Tensor], Tensor]


def on_one_rank(values: Tensor) -> Tensor:
    """Return ``values``: the sum over the ranks of a single-rank run."""
    return values


def whiten(advantages: Sequence[Tensor], masks: Sequence[Tensor], sum_over_ranks: SumOverRanks) -> list[Tensor]:
    """Return advantages ``[R_i]`` float32 with mean zero and variance one.

    ``A_t <- (A_t - mean) / sqrt(var + 1e-8)``, with the unbiased variance (``n - 1``). Mean and variance are taken over the
    unmasked tokens of the rollout on all ranks; masked tokens are shifted and scaled too. Equal advantages become zero.
    With fewer than two unmasked tokens the values stay unchanged.

    Guarantees: every rank gets the same statistics, whatever samples it holds. Sums are float64, and a second pass
    computes the variance around the mean.

    ``sum_over_ranks`` sums a float64 tensor over the data-parallel ranks. Collective.
    """
    pairs = [(values.double(), mask.double()) for values, mask in zip(advantages, masks, strict=True)]
    sums = [torch.stack([(values * mask).sum(), mask.sum()]) for values, mask in pairs]
    totals = sum_over_ranks(torch.stack([torch.zeros(2, dtype=torch.float64), *sums]).sum(0))
    total, count = float(totals[0]), float(totals[1])
    mean = total / max(count, 1.0)
    squares = [((values - mean).square() * mask).sum() for values, mask in pairs]
    deviation = float(sum_over_ranks(torch.stack([torch.zeros((), dtype=torch.float64), *squares]).sum()))
    if count < 2:
        return list(advantages)
    scale = (deviation / (count - 1) + _EPSILON) ** -0.5
    return [((values - mean) * scale).float() for values, _ in pairs]
