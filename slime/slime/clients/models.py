"""What a program says of a model that it trains, and what it sends for a step. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

ALPHA = 32.0
"""Of every adapter, whatever its rank: the Tinker interface has no alpha, and its service uses this one."""
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
"""Linear layers that ``train_attn`` means; the others are of the MLP."""
HEAD = "lm_head"
"""The linear layer that ``train_unembed`` means."""


@dataclass(frozen=True)
class ModelPlan:
    """What a program chose for an adapter.

    Attributes:
        rank: of the adapter.
        seed: decides its first values.
        modules: names of the linear layers that learn.
    """

    rank: int
    seed: int
    modules: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {"rank": self.rank, "seed": self.seed, "modules": list(self.modules)}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> ModelPlan:
        """Return what :meth:`as_json` gave."""
        return cls(int(value["rank"]), int(value["seed"]), tuple(value["modules"]))


class Datum(NamedTuple):
    """One sequence of a step.

    Attributes:
        tokens: ``[L]`` ids that the model reads.
        targets: ``[L]`` ids; number ``i`` is predicted from ``tokens[: i + 1]``, whatever token follows there.
        inputs: of the loss, ``[L]`` float32 each.
    """

    tokens: np.ndarray
    targets: np.ndarray
    inputs: Mapping[str, np.ndarray]


class Passed(NamedTuple):
    """What a pass over data gave.

    Attributes:
        log_probs: ``[L]`` float32 of each datum's targets, in order.
        loss: sum over all tokens.
    """

    log_probs: Sequence[np.ndarray]
    loss: float


class AdamSettings(NamedTuple):
    """Settings of one AdamW step; ``clip``: largest global gradient norm, 0: no clipping."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    clip: float
