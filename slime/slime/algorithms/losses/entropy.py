"""Entropy bonus: the loss gets ``- coef * reduce(H_t)`` with ``H_t = - sum_v pi(v) log pi(v)`` over the vocabulary at token t.

(Williams and Peng, "Function Optimization Using Connectionist Reinforcement Learning Algorithms", 1991.) The metric
``entropy_loss`` is the reduced ``H`` itself: larger is more random.
"""

from __future__ import annotations

from torch import Tensor


def with_entropy_bonus(loss: Tensor, entropy: Tensor, coef: float) -> Tensor:
    """Return ``loss - coef * entropy``; both are already reduced."""
    return loss - coef * entropy if coef else loss
