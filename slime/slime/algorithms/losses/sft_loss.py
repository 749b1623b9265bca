"""Supervised fine-tuning: the negative log likelihood of the response, ``L = reduce(-log pi(a_t))``.

Maximum likelihood on demonstrations (Ouyang et al., "Training language models to follow instructions with human feedback", 2022,
section 3.5); tokens under a zero mask, such as those of the user, have no part in it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from slime.algorithms.losses.reduce import Reducer
from slime.args import Arguments


def sft_loss(
    args: Arguments, batch: dict[str, Any], log_probs: list[Tensor], entropy: list[Tensor], reduce: Reducer
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the reduced loss and its metrics; needs neither old log probabilities nor advantages."""
    loss = reduce(-torch.cat(log_probs))
    return loss, {"loss": loss.detach(), "entropy_loss": reduce(torch.cat(entropy)).detach()}
