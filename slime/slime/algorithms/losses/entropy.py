"""Entropy bonus: the loss gets ``- coef * H``; the metric ``entropy_loss`` is ``H`` itself, larger is more random."""

from __future__ import annotations

from torch import Tensor


def with_entropy_bonus(loss: Tensor, entropy: Tensor, coef: float) -> Tensor:
    """Return ``loss - coef * entropy``; both are already reduced."""
    return loss - coef * entropy if coef else loss
