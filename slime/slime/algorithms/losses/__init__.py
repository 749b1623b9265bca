"""Find a built-in loss by name.

To add a loss, write ``(args, batch, log_probs, entropy, reduce) -> (loss, metrics)`` and add a line to :data:`LOSSES`.
Plugins use ``custom_loss`` (:mod:`slime.algorithms.losses.custom`) instead.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from slime.algorithms.losses.policy_loss import policy_loss
from slime.algorithms.losses.reduce import Reducer
from slime.algorithms.losses.supervised import sft_loss
from slime.args import Arguments
from slime.utils.streams import TrainBatch

Loss = Callable[[Arguments, TrainBatch, list[Tensor], list[Tensor], Reducer], tuple[Tensor, dict[str, Tensor]]]

LOSSES: dict[str, Loss] = {"policy_loss": policy_loss, "sft_loss": sft_loss}
