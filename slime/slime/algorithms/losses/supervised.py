"""Losses with a target: demonstrations (``--loss-type sft_loss``) and a critic's returns."""

from __future__ import annotations

import torch
from torch import Tensor

from slime.algorithms.losses.reduce import Reducer
from slime.args import Arguments
from slime.utils.streams import TrainBatch


def sft_loss(
    args: Arguments, batch: TrainBatch, log_probs: list[Tensor], entropy: list[Tensor], reduce: Reducer
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the reduced loss and its metrics, without old log probabilities or advantages.

    Supervised fine-tuning: the negative log likelihood of the response, ``L = reduce(-log pi(a_t))`` (Ouyang et al.,
    "Training language models to follow instructions with human feedback", 2022, section 3.5). Masked tokens, such as the
    user's, do not count.
    """
    loss = reduce(-torch.cat(log_probs))
    return loss, {"loss": loss.detach(), "entropy_loss": reduce(torch.cat(entropy)).detach()}


def value_loss(
    args: Arguments, batch: TrainBatch, values: list[Tensor], reduce: Reducer
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the reduced loss and its detached metrics.

    The critic's loss: squared distance to the returns, clipped around the values before the step.

    ``L_t = max((V_t - R_t)^2, (clip(V_t, V_old_t - c, V_old_t + c) - R_t)^2)`` with ``c`` = ``--value-clip``. A value
    that has moved by more than ``c`` towards its return has no gradient (Schulman et al., "Proximal Policy
    Optimization Algorithms", 2017, as its public implementation does it).

    Args:
        batch: per-sample lists of ``[R_i]``: ``values`` (from before the step) and ``returns``.
        values: new values with gradient, ``[R_i]`` per sample.
    """
    new, old, returns = torch.cat(values), torch.cat(batch["values"]), torch.cat(batch["returns"])
    near = old + (new - old).clamp(-args.value_clip, args.value_clip)
    free, clipped = (new - returns).square(), (near - returns).square()
    loss = reduce(torch.maximum(free, clipped))
    metrics = {"value_loss": loss, "value_clipfrac": reduce((clipped > free).float())}
    return loss, {name: value.detach() for name, value in metrics.items()}
