"""Off-policy sequence masking: a bad reply that the policy has already moved away from teaches nothing more.

``M = 0`` for the tokens with ``A_t < 0`` of a sequence with ``mean_t (log pi_old(a_t) - log pi(a_t)) > delta``, else 1; it
multiplies the policy loss (DeepSeek-AI, "DeepSeek-V3.2", 2025). ``pi_old`` is the old policy of the ratio, which is the
engine's with ``--use-rollout-logprobs``. Masked tokens stay in the loss's denominator.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from slime.algorithms.losses.sequence import sequence_mean


def off_policy_mask(
    new: Sequence[Tensor], old: Sequence[Tensor], advantages: Sequence[Tensor], masks: Sequence[Tensor], delta: float
) -> Tensor:
    """Return the mask ``[sum R_i]`` of zeros and ones, without gradient."""
    differences = [before - now.detach() for before, now in zip(old, new, strict=True)]
    moved = [mean > delta for mean in sequence_mean(differences, masks)]
    return torch.cat([1.0 - ((a < 0) & far).float() for a, far in zip(advantages, moved, strict=True)])
