"""Dr.GRPO: a constant denominator, so that a wrong answer does not get cheaper by being longer.

``sum_it m_it L_it / C`` with ``C = --rollout-max-response-len``, instead of each sample's own length (Liu et al.,
"Understanding R1-Zero-Like Training: A Critical Perspective", 2025). The other half of the method, rewards without division
by the group's deviation, is ``--disable-grpo-std-normalization``.
Use: ``--custom-pg-loss-reducer-function-path slime.algorithms.losses.dr_grpo.constant_denominator``.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from slime.algorithms.losses.reduce import Reducer, token_sum
from slime.args import Arguments


def constant_denominator(
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    loss_masks: Sequence[Tensor],
    calculate_per_token_loss: bool,
    args: Arguments,
) -> Reducer:
    """Return ``f(x [sum R_i]) = sum_it m_it x_it / args.rollout_max_response_len``."""
    if calculate_per_token_loss:
        raise ValueError("Dr.GRPO's denominator is constant: remove --calculate-per-token-loss")
    longest = args.rollout_max_response_len
    if not longest:
        raise ValueError("Dr.GRPO's denominator is the longest response: add --rollout-max-response-len N")
    total = token_sum(response_lengths, loss_masks)
    return lambda values: total(values) / longest
