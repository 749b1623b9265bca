"""Loss of the example: PPO's clipped surrogate, plus imitation of samples with a high reward."""

from __future__ import annotations

import torch

from slime.backends.megatron_utils.loss import get_log_probs_and_entropy
from slime.utils.ppo_utils import compute_policy_loss


def compute_loss(args, batch, logits, sum_of_sample_mean):
    """``reduce(clip(ratio) A) - example_imitation * reduce(max(A, 0) log pi)``."""
    _, found = get_log_probs_and_entropy(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
        max_seq_lens=batch.get("max_seq_lens"),
    )
    new, old = torch.cat(found["log_probs"]), torch.cat(batch["log_probs"])
    advantages = torch.cat(batch["advantages"])
    losses, clipped = compute_policy_loss(old - new, advantages, args.eps_clip, args.eps_clip_high)
    policy = sum_of_sample_mean(losses)
    imitation = sum_of_sample_mean(-advantages.clamp(min=0.0) * new)
    loss = policy + args.example_imitation * imitation
    return loss, {
        "pg_loss": policy.detach(),
        "pg_clipfrac": sum_of_sample_mean(clipped).detach(),
        "imitation_loss": imitation.detach(),
    }
