"""A custom loss written as a plugin would write it: the clipped surrogate, from the logits."""

from __future__ import annotations

import torch

from slime.backends.megatron_utils.loss import get_log_probs_and_entropy
from slime.utils.ppo_utils import compute_policy_loss


def surrogate(args, batch, logits, sum_of_sample_mean):
    """Equal to ``policy_loss`` without its optional terms."""
    assert batch["ref_log_probs"] is None
    assert batch["tokens"].shape == batch["full_loss_masks"].shape
    _, result = get_log_probs_and_entropy(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
        with_entropy=True,
        max_seq_lens=batch["max_seq_lens"],
    )
    old, advantages = torch.cat(batch["log_probs"]), torch.cat(batch["advantages"])
    losses, clipped = compute_policy_loss(
        old - torch.cat(result["log_probs"]), advantages, args.eps_clip, args.eps_clip_high
    )
    loss = sum_of_sample_mean(losses)
    return loss, {"pg_loss": loss.clone().detach(), "pg_clipfrac": sum_of_sample_mean(clipped)}
