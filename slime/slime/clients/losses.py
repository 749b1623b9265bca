"""Losses that a program names, as sums over tokens: its own log probabilities and advantages decide, nothing is normalised.

With ``p`` the policy's log probability of a target, ``q`` the sampler's, ``A`` the advantage, ``w`` a weight and ``r = exp(p - q)``:

===================== ===========================================================================
cross_entropy         ``-w p``; a weight may be negative, so any loss of log probabilities is one
importance_sampling   ``-r A``
ppo                   ``-min(r A, clip(r, low, high) A)`` (Schulman et al. 2017)
cispo                 ``-sg(clip(r, low, high)) A p`` (MiniMax-M1, 2025), ``sg`` without a gradient
dro                   ``-(p A - beta (p - q)^2 / 2)`` (Richemond et al. 2024)
===================== ===========================================================================

The names, inputs and defaults are those of the Tinker interface. A custom loss ``L(p)`` of a program is ``cross_entropy`` with
``w = -dL/dp``, because both have the same gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from slime.exceptions import SlimeError

TARGETS = "target_tokens"
LOW, HIGH, BETA = "clip_low_threshold", "clip_high_threshold", "beta"
CLIPPING = {LOW: 0.8, HIGH: 1.2}


class LossError(SlimeError):
    """A loss that is not offered, or whose inputs or settings do not fit; the message says what to send."""


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


@dataclass(frozen=True)
class Loss:
    """A loss by its name.

    Attributes:
        of_tokens: the loss of each token, from log probabilities and inputs ``[N]``.
        needs: inputs that a program must send for each token.
        defaults: of inputs that may be left out, or be given once for all tokens.
    """

    of_tokens: Callable[[Tensor, Values], Tensor]
    needs: tuple[str, ...] = ("logprobs", "advantages")
    defaults: Mapping[str, float] | None = None


LOSSES: Mapping[str, Loss] = {
    "cross_entropy": Loss(_cross_entropy, (), {"weights": 1.0}),
    "importance_sampling": Loss(_importance_sampling),
    "ppo": Loss(_ppo, defaults=CLIPPING),
    "cispo": Loss(_cispo, defaults=CLIPPING),
    "dro": Loss(_dro, defaults={BETA: 0.05}),
}


def loss_of(name: str) -> Loss:
    """Return a loss.

    Raises:
        LossError: it is not offered.
    """
    if name not in LOSSES:
        raise LossError(
            f"the loss {name!r} is not offered here; use one of {', '.join(LOSSES)}, or a custom loss, which your program computes"
        )
    return LOSSES[name]


def settings_of(name: str, config: Mapping[str, float | str]) -> dict[str, float]:
    """Return the settings of a loss for all tokens, with its defaults.

    Raises:
        LossError: it is not offered, or has no such setting.
    """
    defaults = dict(loss_of(name).defaults or {})
    for key, value in config.items():
        if key not in defaults or key == "weights":
            known = ", ".join(each for each in defaults if each != "weights") or "none"
            raise LossError(f"the loss {name} has no setting {key!r}; its settings: {known}")
        if isinstance(value, str):
            raise LossError(f"the setting {key} of the loss {name} is a number")
        defaults[key] = float(value)
    return defaults


def token_losses(name: str, log_probs: Tensor, inputs: Values, settings: Mapping[str, float]) -> Tensor:
    """Return the loss of each token ``[N]``.

    Args:
        name: of the loss.
        log_probs: ``[N]`` float32, of the targets under the policy.
        inputs: ``[N]`` each; an input stands before a setting of its name.
        settings: see :func:`settings_of`.

    Example:
        >>> token_losses("cross_entropy", torch.tensor([-1.0, -2.0]), {"weights": torch.tensor([1.0, 0.5])}, {}).tolist()
        [1.0, 1.0]
    """
    filled = {key: torch.full_like(log_probs, value) for key, value in settings.items()}
    return loss_of(name).of_tokens(log_probs, filled | dict(inputs))
