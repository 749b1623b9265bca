"""Distil the teacher's K most likely tokens: the KL over them and a bucket for the rest.

* Reverse, ``KL(pi || pi_T) = sum_k p_k (log p_k - log q_k)``, is mode-seeking.
* Forward, ``KL(pi_T || pi) = sum_k q_k (log q_k - log p_k)``, is mode-covering.

``k`` runs over the support and the tail, whose probability is ``1 - sum_k``. Merging tokens into a bucket never raises a KL,
so both are lower bounds of the KL over the vocabulary (for the two directions: Gu et al., "MiniLLM", 2023, and Agarwal et
al., "On-Policy Distillation of Language Models", 2024).

One gather reads the logits, whatever K is. The trainer passes the response rows, so the logits exist one chunk at a time.
There is no importance weight: the gradient is that of the KL at the sampled states. Both distributions are at temperature 1,
because engines score at 1. With a student at ``--rollout-temperature``, its optimum would differ from the teacher's logits.

Use: ``--loss-type custom_loss --custom-loss-function-path slime.algorithms.losses.topk_distillation.topk_distillation_loss``
(or ``.forward_topk_distillation_loss``), with samples that have ``teacher_topk_log_probs`` and ``teacher_topk_indices``
``[R, K]``. A sample without them adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from slime.algorithms.losses.custom import from_response_rows
from slime.algorithms.losses.reduce import Reducer
from slime.args import Arguments
from slime.logprobs.packed_logits import log_probs_at, predicted_ids
from slime.logprobs.response_rows import ResponseRows
from slime.utils.streams import TrainBatch

READS = ("teacher_topk_log_probs",)
"""Streams that not every sample has; live training refuses a method whose samples lack one."""

# Bounds the tail's probability from below: the float32 sum of a support with nearly all of it may exceed 1.
MIN_TAIL = 1e-6

Divergence = Callable[[Tensor, Tensor], Tensor]


def with_tail(log_probs: Tensor) -> Tensor:
    """Return ``[R, K + 1]``: ``log_probs`` ``[R, K]`` and the log probability of everything else."""
    inside = torch.logsumexp(log_probs, dim=-1, keepdim=True).clamp(max=-MIN_TAIL)
    return torch.cat([log_probs, torch.log(-torch.expm1(inside))], dim=-1)


def reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """Return KL(student || teacher) ``[R]`` of log probabilities ``[R, K]`` on the same support."""
    p, q = with_tail(student), with_tail(teacher)
    return (p.exp() * (p - q)).sum(-1)


def forward_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """Return KL(teacher || student) ``[R]`` of log probabilities ``[R, K]`` on the same support."""
    return reverse_kl(teacher, student)


@from_response_rows
def topk_distillation_loss(
    args: Arguments, batch: TrainBatch, logits: Tensor | ResponseRows, sum_of_sample_mean: Reducer
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the reduced reverse KL and its metrics, as the contract of custom losses requires."""
    return _loss(reverse_kl, args, batch, logits, sum_of_sample_mean)


@from_response_rows
def forward_topk_distillation_loss(
    args: Arguments, batch: TrainBatch, logits: Tensor | ResponseRows, sum_of_sample_mean: Reducer
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the reduced forward KL and its metrics, as the contract of custom losses requires."""
    return _loss(forward_kl, args, batch, logits, sum_of_sample_mean)


def _loss(
    divergence: Divergence, args: Arguments, batch: TrainBatch, logits: Tensor | ResponseRows, reduce: Reducer
) -> tuple[Tensor, dict[str, Tensor]]:
    teachers, supports = teacher_of(batch), support_ids(batch)
    students, _ = log_probs_at(logits, supports, batch, temperature=1.0, chunk=args.log_probs_chunk_size)
    divergences: list[Tensor] = []
    outside: list[Tensor] = []
    for student, teacher in zip(students, teachers, strict=True):
        if teacher is None:
            divergences.append(student.sum(-1) * 0.0)
            outside.append(torch.zeros(len(student), device=student.device))
            continue
        on_support = student[:, : teacher.size(-1)]
        divergences.append(divergence(on_support, teacher))
        outside.append(1.0 - on_support.detach().exp().sum(-1))
    loss = reduce(torch.cat(divergences))
    return loss, {"topk_kl": loss.detach(), "topk_tail": reduce(torch.cat(outside))}


def teacher_of(batch: TrainBatch) -> list[Tensor | None]:
    """Return the teacher's log probabilities ``[R, K]`` per sample; None for a sample without a teacher.

    Raises:
        ValueError: no sample of the rollout has a teacher.
    """
    values, ids = _given(batch)
    return [None if tokens is None else log_probs for log_probs, tokens in zip(values, ids, strict=True)]


def _given(batch: TrainBatch) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Return the batch's teacher log probabilities and ids; raise ValueError if it has none."""
    values, ids = batch["teacher_topk_log_probs"], batch["teacher_topk_indices"]
    if values is None or ids is None:
        raise ValueError(
            "top-K distillation needs teacher_topk_log_probs and teacher_topk_indices, but no sample of the batch has them"
        )
    return values, ids


def support_ids(batch: TrainBatch) -> list[Tensor]:
    """Return the teacher's ids ``[R, K]`` per sample, padded to the batch's largest K.

    Padding repeats the response token. A sample without a teacher has padding only.
    """
    return padded_support(batch, _given(batch)[1])


def padded_support(batch: TrainBatch, supports: Sequence[Tensor | None]) -> list[Tensor]:
    """Return ids ``[R, K]`` per sample, padded to the largest K of ``supports``, at least 1; see `support_ids`."""
    width = max((ids.size(-1) for ids in supports if ids is not None), default=1)
    tokens = predicted_ids(batch["unconcat_tokens"], batch["total_lengths"], batch["response_lengths"])
    tensors: list[Tensor] = []
    for own, ids in zip(tokens, supports, strict=True):
        missing = width - (0 if ids is None else ids.size(-1))
        padding = own.unsqueeze(-1).expand(-1, missing)
        tensors.append(padding if ids is None else torch.cat([ids, padding], dim=-1) if missing else ids)
    return tensors
