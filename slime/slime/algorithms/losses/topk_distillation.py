"""Distillation on the teacher's K most likely tokens: the KL over those and one bucket for all the others.

Reverse, ``KL(pi || pi_T) = sum_k p_k (log p_k - log q_k)``, follows the teacher's modes; forward, ``KL(pi_T || pi) =
sum_k q_k (log q_k - log p_k)``, covers them. ``k`` runs over the support and the tail, whose probability is ``1 - sum_k``.
Merging tokens into a bucket never raises a KL, so both are lower bounds of the KL over the vocabulary (Gu et al., "MiniLLM",
2023, and Agarwal et al., "On-Policy Distillation of Language Models", 2024, for the two directions). One gather over the
logits, whatever K is. There is no importance weight: the gradient is that of the KL at the sampled states. Both
distributions are those at temperature 1, at which engines score: a student at ``--rollout-temperature`` against a teacher at 1
would be pulled towards other logits than the teacher's.

Use: ``--loss-type custom_loss --custom-loss-function-path slime.algorithms.losses.topk_distillation.topk_distillation_loss``
(or ``.forward_topk_distillation_loss``), with samples that have ``teacher_topk_log_probs`` and ``teacher_topk_indices``
``[R, K]``. A sample without them adds nothing.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from slime.algorithms.losses.reduce import Reducer
from slime.backends.megatron_utils.loss import get_responses
from slime.utils.vocab_parallel import log_probs_of_ids, tensor_parallel_group

# Smallest probability of the tail: float32 sums of a support that holds nearly everything may pass 1.
SMALLEST_TAIL = 1e-6

Divergence = Callable[[Tensor, Tensor], Tensor]


def support_log_probs(logits: Tensor, ids: Tensor, chunk: int = -1) -> Tensor:
    """Return log probabilities ``[R, K]`` float32 of the tokens ``ids`` ``[R, K]`` under ``logits`` ``[R, V]``.

    ``chunk`` rows at a time bound the memory of the forward pass; not positive: all at once.
    """
    return log_probs_of_ids(logits, ids, tensor_parallel_group(), chunk)


def with_tail(log_probs: Tensor) -> Tensor:
    """Return ``[R, K + 1]``: ``log_probs`` ``[R, K]`` and the log probability of everything else."""
    inside = torch.logsumexp(log_probs, dim=-1, keepdim=True).clamp(max=-SMALLEST_TAIL)
    return torch.cat([log_probs, torch.log(-torch.expm1(inside))], dim=-1)


def reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """Return KL(student || teacher) ``[R]`` of log probabilities ``[R, K]`` on the same support."""
    p, q = with_tail(student), with_tail(teacher)
    return (p.exp() * (p - q)).sum(-1)


def forward_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """Return KL(teacher || student) ``[R]`` of log probabilities ``[R, K]`` on the same support."""
    return reverse_kl(teacher, student)


def topk_distillation_loss(
    args: Namespace, batch: dict[str, Any], logits: Tensor, sum_of_sample_mean: Reducer
) -> tuple[Tensor, dict[str, Tensor]]:
    """The reverse KL as a custom loss: the reduced loss and its metrics, by the contract of custom losses."""
    return _loss(reverse_kl, args, batch, logits, sum_of_sample_mean)


def forward_topk_distillation_loss(
    args: Namespace, batch: dict[str, Any], logits: Tensor, sum_of_sample_mean: Reducer
) -> tuple[Tensor, dict[str, Tensor]]:
    """The forward KL as a custom loss: the reduced loss and its metrics, by the contract of custom losses."""
    return _loss(forward_kl, args, batch, logits, sum_of_sample_mean)


def _loss(
    divergence: Divergence, args: Namespace, batch: dict[str, Any], logits: Tensor, reduce: Reducer
) -> tuple[Tensor, dict[str, Tensor]]:
    divergences, outside = [], []
    for chunk, values, ids in student_and_teacher(Namespace(rollout_temperature=1.0), batch, logits):
        if values is None or ids is None:
            divergences.append(chunk.sum(-1) * 0.0)
            outside.append(torch.zeros(len(chunk), device=chunk.device))
            continue
        student = support_log_probs(chunk, ids, args.log_probs_chunk_size)
        divergences.append(divergence(student, values))
        outside.append(1.0 - student.detach().exp().sum(-1))
    loss = reduce(torch.cat(divergences))
    return loss, {"topk_kl": loss.detach(), "topk_tail": reduce(torch.cat(outside))}


def student_and_teacher(
    args: Namespace, batch: dict[str, Any], logits: Tensor
) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
    """Yield per sample its response logits ``[R, V]`` over ``args.rollout_temperature``, and the teacher's log probabilities and ids ``[R, K]`` or None."""
    values, ids = batch["teacher_topk_log_probs"], batch["teacher_topk_indices"]
    if values is None or ids is None:
        raise ValueError(
            "top-K distillation needs teacher_topk_log_probs and teacher_topk_indices on samples; none of the batch has them"
        )
    responses = get_responses(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
    )
    for (chunk, _), log_probs, tokens in zip(responses, values, ids, strict=True):
        yield chunk, log_probs, tokens
