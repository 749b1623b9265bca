"""The built-in policy loss: a sum of named terms.

``L = reduce(w_t * PPO_clip(log pi - log pi_old, A_t)) + kl_loss_coef * reduce(KL) - entropy_coef * reduce(H)``, where ``w_t``
are truncated importance weights or 1. It reads per-token streams and knows no method.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from torch import Tensor

from slime.algorithms.losses.entropy import with_entropy_bonus
from slime.algorithms.losses.kl import kl_per_token
from slime.algorithms.losses.reduce import Reducer
from slime.algorithms.losses.tis import truncated_weights
from slime.utils.ppo_utils import compute_policy_loss


def policy_loss(
    args: Namespace, batch: dict[str, Any], log_probs: list[Tensor], entropy: list[Tensor], reduce: Reducer
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the reduced loss and its detached metrics (reduced the same way).

    Args:
        batch: per-sample lists of ``[R_i]``: ``log_probs`` (old), ``advantages``, and where used ``ref_log_probs``,
            ``rollout_log_probs``.
        log_probs: new log probabilities with gradient, ``[R_i]`` per sample.
        entropy: ``[R_i]`` per sample.
    """
    new = torch.cat(log_probs)
    old = torch.cat(batch["log_probs"])
    advantages = torch.cat(batch["advantages"])
    ppo_kl = old - new
    losses, clip_fraction = compute_policy_loss(
        ppo_kl, advantages, args.eps_clip, args.eps_clip_high, getattr(args, "eps_clip_c", None)
    )
    metrics = {"pg_clipfrac": reduce(clip_fraction), "ppo_kl": reduce(ppo_kl.detach())}
    if batch.get("rollout_log_probs") is not None:
        rollout = torch.cat(batch["rollout_log_probs"])
        metrics["train_rollout_logprob_abs_diff"] = reduce((old - rollout).abs())
        if args.use_tis:
            weights, ratio = truncated_weights(old, rollout, args.tis_clip_low, args.tis_clip)
            losses = losses * weights
            metrics |= {
                "tis": reduce(ratio),
                "tis_abs": reduce((ratio - 1.0).abs()),
                "tis_clipfrac": reduce((weights != ratio).float()),
            }
    elif args.use_tis:
        raise ValueError("--use-tis needs rollout_log_probs on every sample: ask the engine for logprobs")
    pg_loss = reduce(losses)
    entropy_mean = reduce(torch.cat(entropy))
    loss = with_entropy_bonus(pg_loss, entropy_mean, args.entropy_coef)
    metrics |= {"pg_loss": pg_loss, "entropy_loss": entropy_mean}
    if args.use_kl_loss:
        kl = reduce(kl_per_token(args, new, old, torch.cat(batch["ref_log_probs"])))
        loss = loss + args.kl_loss_coef * kl
        metrics["kl_loss"] = kl
    metrics["loss"] = loss
    return loss, {name: value.detach() for name, value in metrics.items()}
