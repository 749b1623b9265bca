"""Tells when trainer and engines give the same tokens other log probabilities.

The trainer learns from probabilities that the engine reported. If the two disagree by more than their arithmetic
explains, the ratios of the loss are wrong although nothing fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime.observability.metric_utils import STEPS

KL = "train/train_rollout_kl"
DIFFERENCE = "train/train_rollout_logprob_abs_diff"
AGE = "rollout/staleness_mean"
MOST_KL = 0.01
"""Nats per token; engine and trainer in bfloat16 differ by some 1e-4."""
ROLLOUTS_BETWEEN = 20
"""A run that keeps disagreeing says so once in so many rollouts."""


class MismatchAlarm:
    """Owned by the driver; remembers when it last spoke."""

    def __init__(self) -> None:
        self._spoke: int | None = None

    def line(self, rollout_id: int, metrics: Mapping[str, Any]) -> str | None:
        """Return a warning about a rollout's steps, or None if they agree or the last warning is recent."""
        steps: list[Mapping[str, Any]] = [metrics, *metrics.get(STEPS, [])]
        worst = max((step for step in steps if step.get(KL) is not None), key=lambda step: step[KL], default=None)
        if worst is None or worst[KL] <= MOST_KL:
            return None
        if self._spoke is not None and rollout_id - self._spoke < ROLLOUTS_BETWEEN:
            return None
        self._spoke = rollout_id
        age = metrics.get(AGE)
        old = f"; its samples are {age:.1f} updates old on average, which explains a part" if age else ""
        mean = f" (mean difference {worst[DIFFERENCE]:.3f})" if worst.get(DIFFERENCE) is not None else ""
        return (
            f"warning: trainer and engines disagree by {worst[KL]:.3f} nats per token at step {rollout_id}{mean}, more than "
            f"{MOST_KL:g}{old}; see instructions/stable_learning.md"
        )
