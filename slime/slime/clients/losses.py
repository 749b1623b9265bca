"""Losses that a program names, as sums over tokens: its own log probabilities and advantages decide, nothing is normalised.

With ``p`` the policy's log probability of a target, ``q`` the sampler's, ``A`` the advantage, ``w`` a weight and ``r = exp(p - q)``:

===================== ===========================================================================
cross_entropy         ``-w p``; a weight may be negative, so any loss of log probabilities is one
importance_sampling   ``-r A``
ppo                   ``-min(r A, clip(r, low, high) A)`` (Schulman et al. 2017)
cispo                 ``-sg(clip(r, low, high)) A p`` (MiniMax-M1, 2025), ``sg`` without a gradient
dro                   ``-(p A - beta (p - q)^2 / 2)`` (Richemond et al. 2024)
===================== ===========================================================================

The names, inputs and defaults are those of the Tinker interface (`slime.clients.models.LOSS_INPUTS`). A custom loss ``L(p)`` of a
program is ``cross_entropy`` with ``w = -dL/dp``, because both have the same gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from slime.clients.models import BETA, HIGH, LOW

Values = Mapping[str, Tensor]
"""Inputs of a loss besides the targets, ``[N]`` each."""


def _cross_entropy(log_probs: Tensor, values: Values) -> Tensor:
    return -values["weights"] * log_probs


def _ratio(log_probs: Tensor, values: Values) -> Tensor:
    return torch.exp(log_probs - values["logprobs"])


def _importance_sampling(log_probs: Tensor, values: Values) -> Tensor:
    return -_ratio(log_probs, values) * values["advantages"]


def _ppo(log_probs: Tensor, values: Values) -> Tensor:
    ratio, advantages = _ratio(log_probs, values), values["advantages"]
    clipped = torch.clamp(ratio, values[LOW], values[HIGH])
    return -torch.minimum(ratio * advantages, clipped * advantages)


def _cispo(log_probs: Tensor, values: Values) -> Tensor:
    clipped = torch.clamp(_ratio(log_probs, values), values[LOW], values[HIGH]).detach()
    return -clipped * values["advantages"] * log_probs


def _dro(log_probs: Tensor, values: Values) -> Tensor:
    distance = (log_probs - values["logprobs"]).square()
    return -(log_probs * values["advantages"] - 0.5 * values[BETA] * distance)


OF_TOKENS: Mapping[str, Callable[[Tensor, Values], Tensor]] = {
    "cross_entropy": _cross_entropy,
    "importance_sampling": _importance_sampling,
    "ppo": _ppo,
    "cispo": _cispo,
    "dro": _dro,
}


def token_losses(name: str, log_probs: Tensor, values: Values) -> Tensor:
    """Return the loss of each token ``[N]``, from log probabilities of the targets and all inputs of the loss ``[N]``.

    Example:
        >>> token_losses("cross_entropy", torch.tensor([-1.0, -2.0]), {"weights": torch.tensor([1.0, 0.5])}).tolist()
        [1.0, 1.0]
    """
    return OF_TOKENS[name](log_probs, values)
