"""The Combine loss as a custom loss function, for ``--loss-type custom_loss``.

    A[k] = advantage[k] + w_opd * (log pi_T(a[k]) - log pi_old(a[k]))
    loss = PPO clip(log pi - log pi_old, A) + kl_loss_coef * KL(pi, pi_ref) - entropy_coef * entropy

Guarantees: the same number and gradient as the built-in loss with ``--use-opd --opd-kl-coef w_opd``; use only one.
``advantage`` is the estimator's (GRPO without normalisation: the sample's reward, which holds ``w_rl``); ``w_opd`` is
``OPENCLAW_COMBINE_W_OPD``. A sample without teacher log-probabilities has the first term only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from openclaw.config import RuntimeConfig
from slime.backends.megatron_utils.loss import get_log_probs_and_entropy
from slime.utils.ppo_utils import compute_approx_kl, compute_policy_loss


def combine_loss_function(
    args: Any, batch: dict[str, Any], logits: torch.Tensor, sum_of_sample_mean: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss of a micro-batch and its detached metrics.

    Args:
        args: of the run.
        batch: per-sample lists of 1-D tensors over response tokens; ``teacher_log_probs`` may hold None.
        logits: of the micro-batch, as `get_log_probs_and_entropy` takes them.
        sum_of_sample_mean: reduces one value per response token of the micro-batch to the sum of sample means.
    """
    if getattr(args, "use_opd", False):
        raise ValueError("--use-opd adds the distillation term already; drop it, or drop --loss-type custom_loss")
    if getattr(args, "use_tis", False):
        raise ValueError("combine_loss has no importance weights; for --use-tis drop --loss-type custom_loss")
    _, output = get_log_probs_and_entropy(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
        with_entropy=True,
    )
    old = batch["rollout_log_probs"] if args.use_rollout_logprobs else batch["log_probs"]
    log_probs, old_log_probs = torch.cat(output["log_probs"]), torch.cat(old)
    distillation = distillation_term(batch.get("teacher_log_probs"), old)
    weight = RuntimeConfig.from_env().combine_w_opd
    advantages = torch.cat(batch["advantages"]) + weight * distillation
    difference = old_log_probs - log_probs
    losses, clip_fraction = compute_policy_loss(difference, advantages, args.eps_clip, args.eps_clip_high)
    pg_loss = sum_of_sample_mean(losses)
    entropy = sum_of_sample_mean(torch.cat(output["entropy"]))
    loss = pg_loss - args.entropy_coef * entropy
    metrics = {
        "pg_loss": pg_loss,
        "entropy_loss": entropy,
        "pg_clipfrac": sum_of_sample_mean(clip_fraction),
        "ppo_kl": sum_of_sample_mean(difference),
        "opd_reverse_kl": sum_of_sample_mean(-distillation),
    }
    if args.use_kl_loss:
        kl = compute_approx_kl(log_probs, torch.cat(batch["ref_log_probs"]), kl_loss_type=args.kl_loss_type)
        metrics["kl_loss"] = sum_of_sample_mean(kl)
        loss = loss + args.kl_loss_coef * metrics["kl_loss"]
    return loss, {"loss": loss.detach()} | {name: value.detach() for name, value in metrics.items()}


def distillation_term(teacher: list[torch.Tensor | None] | None, old: list[torch.Tensor]) -> torch.Tensor:
    """Return log pi_T - log pi_old over the response tokens of the micro-batch, zero for samples without a teacher."""
    teachers = teacher if teacher is not None else [None] * len(old)
    terms = [
        torch.zeros_like(before) if with_hint is None else with_hint.to(before) - before
        for with_hint, before in zip(teachers, old, strict=True)
    ]
    return torch.cat(terms)
