"""What a program says of a model that it trains, and what it sends for a step: checked here, before a rank sees it.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from slime.exceptions import SlimeError

TARGETS = "target_tokens"
LOW, HIGH, BETA = "clip_low_threshold", "clip_high_threshold", "beta"
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


class DataError(SlimeError):
    """A loss that is not offered, or data that do not fit it or the model; the message says what to send."""


class LossInputs(NamedTuple):
    """What a loss reads besides the targets.

    Attributes:
        needs: inputs that each datum must have.
        defaults: of inputs that it may have.
        settings: which of these may be given once for all tokens.
    """

    needs: tuple[str, ...] = ("logprobs", "advantages")
    defaults: Mapping[str, float] = {}
    settings: tuple[str, ...] = ()


_CLIPPED = LossInputs(defaults={LOW: 0.8, HIGH: 1.2}, settings=(LOW, HIGH))
LOSS_INPUTS: Mapping[str, LossInputs] = {
    "cross_entropy": LossInputs((), {"weights": 1.0}),
    "importance_sampling": LossInputs(),
    "ppo": _CLIPPED,
    "cispo": _CLIPPED,
    "dro": LossInputs(defaults={BETA: 0.05}, settings=(BETA,)),
}


def complete(
    data: Sequence[Datum], loss: str, config: Mapping[str, float | str], *, vocabulary: int, context: int
) -> list[Datum]:
    """Return data with all inputs of a loss: a datum's own, else what ``config`` says for all tokens, else the default.

    Args:
        data: of a program.
        loss: its name.
        config: settings of the loss.
        vocabulary: number of ids that the model has.
        context: most tokens of a datum.

    Raises:
        DataError: something does not fit.
    """
    if loss not in LOSS_INPUTS:
        offered = ", ".join(LOSS_INPUTS)
        raise DataError(
            f"the loss {loss!r} is not offered here; use one of {offered}, or a custom loss, which your program computes"
        )
    inputs = LOSS_INPUTS[loss]
    common = dict(inputs.defaults)
    for key, value in config.items():
        if key not in inputs.settings:
            raise DataError(
                f"the loss {loss} has no setting {key!r}; its settings: {', '.join(inputs.settings) or 'none'}"
            )
        if isinstance(value, str):
            raise DataError(f"the setting {key} of the loss {loss} is a number")
        common[key] = float(value)
    if not data:
        raise DataError("there are no data; send at least one datum")
    known = {*inputs.needs, *common}
    results = []
    for number, datum in enumerate(data):
        length = len(datum.tokens)
        if not 0 < length <= context:
            raise DataError(f"datum {number} has {length} tokens; send 1 to {context}")
        for what, ids in (("input", datum.tokens), (TARGETS, datum.targets)):
            if ids.min() < 0 or ids.max() >= vocabulary:
                raise DataError(
                    f"datum {number}: {what} has the id {int(ids.max() if ids.min() >= 0 else ids.min())}; this model has 0 to {vocabulary - 1}"
                )
        if missing := [name for name in inputs.needs if name not in datum.inputs]:
            raise DataError(f"datum {number} has no {missing[0]}, which the loss {loss} needs")
        if extra := sorted(set(datum.inputs) - known):
            raise DataError(
                f"datum {number}: the loss {loss} has no input {extra[0]!r}; its inputs: {', '.join(sorted(known))}"
            )
        filled = {name: np.full(length, value, np.float32) for name, value in common.items()}
        results.append(datum._replace(inputs=filled | dict(datum.inputs)))
    return results


def tokens_with_loss(loss: str, data: Sequence[Datum]) -> int:
    """Return how many targets of completed data have a loss: those whose weight or advantage is not 0, with ``dro`` all."""
    if loss == "dro":
        return sum(len(datum.targets) for datum in data)
    factor = "weights" if loss == "cross_entropy" else "advantages"
    return sum(int(np.count_nonzero(datum.inputs[factor])) for datum in data)
