"""Add distillation on the student's K most likely tokens to the policy loss.

On the student's own top-K set ``S`` at the sampled state: ``w_v = softmax_S(log pi_old(v))``, ``D_v = clip(log pi_T(v) -
log pi_old(v), -C, C)``, ``A_v = w_v D_v``. Per token, ``L_OPD = sum_v PPO_clip(log pi(v) - log pi_old(v), A_v)``, and ``L =
L_policy + opd_kl_coef * L_OPD`` (OpenClaw-RL, arXiv 2603.10165v2; K = 4, clip 0.2 / 0.28). ``C`` is ``--opd-clip``, 1 by
default: without the bound, replies grow until they hit the length limit. One gather reads the logits, whatever K is.

All distributions are at ``--rollout-temperature``: ``pi`` here, and ``pi_old`` and ``pi_T`` in the samples. A teacher that is
the policy which sampled therefore has ``A_v = 0``.

Use: ``--loss-type custom_loss --custom-loss-function-path slime.algorithms.losses.hybrid_distillation.hybrid_loss``. Samples
need ``teacher_topk_indices`` (``S``), ``teacher_topk_log_probs`` (the teacher's) and ``rollout_topk_log_probs`` (the sampling
policy's) ``[R, K]``. A sample without a teacher gets the policy loss only; ``opd_share`` is the share of tokens with one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from slime.algorithms.losses.custom import from_response_rows
from slime.algorithms.losses.policy_loss import policy_loss
from slime.algorithms.losses.reduce import Reducer
from slime.algorithms.losses.topk_distillation import padded_support, support_ids, teacher_of
from slime.args import Arguments
from slime.logprobs.packed_logits import log_probs_at, predicted_ids
from slime.logprobs.response_rows import ResponseRows
from slime.utils.ppo_utils import compute_policy_loss
from slime.utils.streams import TrainBatch

READS = ("rollout_topk_log_probs",)
"""Streams that not every sample has; live training refuses a method whose samples lack one."""
# Bound on the teacher's log ratio without --opd-clip.
MAX_DIFFERENCE = 1.0


def support_surrogate(args: Arguments, new: Tensor, old: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Return losses ``[R]`` and the clipped share of the support ``[R]`` from log probabilities ``[R, K]``.

    A token whose weight rounds to zero adds nothing, however far its ratio overflows. ``--eps-clip-c`` bounds the loss of
    negative advantages, as in the policy loss.
    """
    bound = MAX_DIFFERENCE if args.opd_clip is None else args.opd_clip
    weights = torch.softmax(old, dim=-1)
    advantages = weights * (teacher - old).clamp(-bound, bound)
    counts = advantages != 0.0
    kl = torch.where(counts, old, new.detach()) - new
    clips = (args.eps_clip, args.eps_clip_high, args.eps_clip_c)
    losses, clipped = compute_policy_loss(kl, advantages, *clips)
    return losses.sum(-1), clipped.mean(-1)


@from_response_rows
def hybrid_loss(
    args: Arguments, batch: TrainBatch, logits: Tensor | ResponseRows, sum_of_sample_mean: Reducer
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the reduced loss and its metrics, as the contract of custom losses requires."""
    if args.use_opd:
        raise ValueError(
            "--use-opd would add another teacher's term to the hybrid loss, which has its own; remove --use-opd"
        )
    teachers, supports, before = _streams(batch)
    own = predicted_ids(batch["unconcat_tokens"], batch["total_lengths"], batch["response_lengths"])
    ids = [torch.cat([a.unsqueeze(-1), b], dim=-1) for a, b in zip(own, supports, strict=True)]
    settings: dict[str, Any] = {"temperature": args.rollout_temperature, "chunk": args.log_probs_chunk_size}
    result, entropy = log_probs_at(logits, ids, batch, **settings, with_entropy=True)
    loss, metrics = policy_loss(args, batch, [values[:, 0] for values in result], entropy, sum_of_sample_mean)
    losses: list[Tensor] = []
    clipped: list[Tensor] = []
    taught: list[Tensor] = []
    for new, teacher, old in zip(result, teachers, before, strict=True):
        if teacher is None or old is None:
            losses.append(new.sum(-1) * 0.0)
            clipped.append(torch.zeros(len(new), device=new.device))
            taught.append(torch.zeros(len(new), device=new.device))
            continue
        parts = support_surrogate(args, new[:, 1 : 1 + teacher.size(-1)], old, teacher)
        losses.append(parts[0])
        clipped.append(parts[1])
        taught.append(torch.ones(len(new), device=new.device))
    distillation = sum_of_sample_mean(torch.cat(losses))
    loss = loss + args.opd_kl_coef * distillation
    metrics |= {"opd_loss": distillation.detach(), "opd_clipfrac": sum_of_sample_mean(torch.cat(clipped))}
    metrics["opd_share"] = sum_of_sample_mean(torch.cat(taught))
    return loss, metrics | {"loss": loss.detach()}


def _streams(batch: TrainBatch) -> tuple[Sequence[Tensor | None], Sequence[Tensor], Sequence[Tensor | None]]:
    """Return per sample the teacher's log probabilities, the support's ids, and the sampling policy's log probabilities.

    Raises:
        ValueError: a sample has a teacher, but lacks the sampling policy's log probabilities of the same tokens.
    """
    if batch.get("teacher_topk_indices") is None:
        nothing = [None] * len(batch["total_lengths"])
        return nothing, padded_support(batch, nothing), nothing
    teachers = teacher_of(batch)
    before = batch.get("rollout_topk_log_probs") or [None] * len(teachers)
    if any(teacher is not None and old is None for teacher, old in zip(teachers, before, strict=True)):
        raise ValueError("the hybrid loss needs rollout_topk_log_probs, but a sample with a teacher has none")
    return teachers, support_ids(batch), before
