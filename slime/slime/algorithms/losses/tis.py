"""Truncated importance sampling: trains the trainer's weights on tokens that other weights, or another program, sampled.

``w_t = clip(pi_old(a_t) / pi_rollout(a_t), low, high)`` multiplies the policy loss of token t, where ``pi_old`` are the
trainer's weights before the step and ``pi_rollout`` is what the engine reported for that token, whichever weight version it had
then. Without bounds the weighted loss is an unbiased estimate for ``pi_old``; ``high`` bounds its variance (Ionides, "Truncated
Importance Sampling", 2008; for engine against trainer: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL
Training", 2025).
"""

from __future__ import annotations

import torch
from torch import Tensor


def truncated_weights(
    old_log_probs: Tensor, rollout_log_probs: Tensor, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Return the weights and the raw ratios, both without gradient, elementwise."""
    ratio = torch.exp(old_log_probs.detach() - rollout_log_probs.detach())
    return ratio.clamp(low, high), ratio
