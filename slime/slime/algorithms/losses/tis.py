"""Truncated importance sampling for engine and trainer that compute slightly different probabilities.

``w_t = clip(pi_train,old(a_t) / pi_rollout(a_t), low, high)`` multiplies the policy loss of token t (Yao et al. 2025). It
corrects for the policy that sampled, and for weights that are older than the trainer's when samples waited.
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
