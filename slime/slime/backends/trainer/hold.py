"""Whether a fuse holds back an optimizer step, decided after its backward pass and before it changes a weight."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from slime.args import Arguments
from slime.utils.fuses import OF_THE_LOSS, blown
from slime.utils.metric_names import HELD

logger = logging.getLogger(__name__)


def held_back(args: Arguments, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return ``{HELD: 1.0}`` if the loss's metrics, equal on all ranks, blow a fuse, else 0.0; empty without fuses."""
    if not args.fuses:
        return {}
    cause = blown(args.fuses, {f"{OF_THE_LOSS}{name}": value for name, value in metrics.items()})
    if cause is not None:
        logger.error("fuse %s: skipping this optimizer step, the weights stay unchanged", cause)
    return {HELD: float(cause is not None)}
