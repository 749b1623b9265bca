"""Masked importance sampling: what the engine and the trainer disagree about is taken out of the batch.

Inside ``[--tis-clip-low, --tis-clip]`` the loss is weighted by the token's ratio ``w_t = pi_old(a_t) / pi_rollout(a_t)``;
outside, the mask becomes 0, so the rest is averaged as if it had not been there. :func:`token_rejection` judges each token by
``w_t``, :func:`sequence_rejection` each sequence by the geometric mean of its ratios, which does not shrink with length
(Liu et al., "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch", 2025).
Use: ``--use-tis --custom-tis-function-path slime.algorithms.losses.rejection.sequence_rejection``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from slime.algorithms.losses.band import Correction, log_ratios, weigh_inside
from slime.algorithms.losses.sequence import sequence_mean


def token_rejection(**given: Any) -> Correction:
    """Return the weighted losses ``[sum R_i]``, masks without the tokens outside the band, and metrics per token.

    Takes the keywords of the contract of :mod:`slime.algorithms.losses.correction`.
    """
    ratios = log_ratios(given["train_log_probs"], given["rollout_log_probs"])
    return _reject(given, ratios, ratios)


def sequence_rejection(**given: Any) -> Correction:
    """Return the weighted losses ``[sum R_i]``, masks without the sequences outside the band, and metrics per token.

    Takes the keywords of the contract of :mod:`slime.algorithms.losses.correction`.
    """
    ratios = log_ratios(given["train_log_probs"], given["rollout_log_probs"])
    means = sequence_mean(ratios, given["loss_masks"])
    return _reject(given, ratios, [mean.expand_as(row) for mean, row in zip(means, ratios, strict=True)])


def _reject(given: dict[str, Any], own: Sequence[Tensor], judged: Sequence[Tensor]) -> Correction:
    losses, kept, metrics = weigh_inside(given["args"], given["pg_loss"], own, judged)
    return losses, [mask * keep for mask, keep in zip(given["loss_masks"], kept, strict=True)], metrics
