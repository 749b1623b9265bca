"""Add distillation on the student's K most likely tokens to the policy loss.

On the student's own top-K set ``S`` at the sampled state: ``w_v = softmax_S(log pi_old(v))``, ``D_v = clip(log pi_T(v) -
log pi_old(v), -1, 1)``, ``A_v = w_v D_v``. Per token, ``L_OPD = sum_v PPO_clip(log pi(v) - log pi_old(v), A_v)``, and ``L =
L_policy + opd_kl_coef * L_OPD`` (OpenClaw-RL, arXiv 2603.10165v2; K = 4, clip 0.2 / 0.28). Without the bound on ``D``,
replies grow until they hit the length limit. One gather reads the logits, whatever K is.

Use: ``--loss-type custom_loss --custom-loss-function-path slime.algorithms.losses.hybrid_distillation.hybrid_loss``. Samples
need ``teacher_topk_indices`` (``S``), ``teacher_topk_log_probs`` (the teacher's) and ``rollout_topk_log_probs`` (the sampling
policy's) ``[R, K]``. A sample without them gets the policy loss only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from slime.algorithms.losses.custom import from_response_rows
from slime.algorithms.losses.policy_loss import policy_loss
from slime.algorithms.losses.reduce import Reducer
from slime.algorithms.losses.topk_distillation import support_ids, teacher_of
from slime.args import Arguments
from slime.logprobs.packed_logits import log_probs_at, predicted_ids
from slime.logprobs.response_rows import ResponseRows
from slime.utils.ppo_utils import compute_policy_loss
from slime.utils.streams import TrainBatch

# Bound on the teacher's advantage per token of the support.
LARGEST_DIFFERENCE = 1.0


def support_surrogate(args: Arguments, new: Tensor, old: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Return losses ``[R]`` and the clipped share of the support ``[R]`` from log probabilities ``[R, K]``."""
    weights = torch.softmax(old, dim=-1)
    advantages = weights * (teacher - old).clamp(-LARGEST_DIFFERENCE, LARGEST_DIFFERENCE)
    losses, clipped = compute_policy_loss(old - new, advantages, args.eps_clip, args.eps_clip_high)
    return losses.sum(-1), clipped.mean(-1)


@from_response_rows
def hybrid_loss(
    args: Arguments, batch: TrainBatch, logits: Tensor | ResponseRows, sum_of_sample_mean: Reducer
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the reduced loss and its metrics, as the contract of custom losses requires."""
    before = batch.get("rollout_topk_log_probs")
    if before is None:
        raise ValueError("the hybrid loss needs rollout_topk_log_probs, but no sample of the batch has them")
    teachers = teacher_of(batch)
    own = predicted_ids(batch["unconcat_tokens"], batch["total_lengths"], batch["response_lengths"])
    ids = [torch.cat([a.unsqueeze(-1), b], dim=-1) for a, b in zip(own, support_ids(batch), strict=True)]
    settings: dict[str, Any] = {"temperature": args.rollout_temperature, "chunk": args.log_probs_chunk_size}
    found, entropy = log_probs_at(logits, ids, batch, **settings, with_entropy=True)
    loss, metrics = policy_loss(args, batch, [values[:, 0] for values in found], entropy, sum_of_sample_mean)
    losses: list[Tensor] = []
    clipped: list[Tensor] = []
    for new, teacher, old in zip(found, teachers, before, strict=True):
        if teacher is None or old is None:
            losses.append(new.sum(-1) * 0.0)
            clipped.append(torch.zeros(len(new), device=new.device))
            continue
        parts = support_surrogate(args, new[:, 1 : 1 + teacher.size(-1)], old, teacher)
        losses.append(parts[0])
        clipped.append(parts[1])
    distillation = sum_of_sample_mean(torch.cat(losses))
    loss = loss + args.opd_kl_coef * distillation
    metrics |= {"opd_loss": distillation.detach(), "opd_clipfrac": sum_of_sample_mean(torch.cat(clipped))}
    return loss, metrics | {"loss": loss.detach()}
