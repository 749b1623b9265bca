"""Names of metrics that several parts read, and how a metric is combined over micro-batches and ranks.

A metric whose name ends in `LARGEST` is a largest value; all others are sums that a denominator divides.
"""

from __future__ import annotations

LARGEST = "_max"
HELD = "fuse_held"
"""Metric of a step with fuses: 1 if one of them held the step back (`slime.utils.fuses`), else 0."""
PAUSED = "rollout/paused"
"""Metric of a rollout with fuses: 1 if training is paused after it, else 0."""
STEPS_OF_ENTROPY = 8
RECENT_ENTROPY = f"rollout/entropy_of_{STEPS_OF_ENTROPY}_steps"
"""Metric of a rollout: the mean of `train/entropy_loss` (nats per token) over that many last steps, once there are so many."""


def is_largest(name: str) -> bool:
    """Return whether the metric ``name`` is combined by taking the largest value."""
    return name.endswith(LARGEST)
