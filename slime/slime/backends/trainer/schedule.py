"""The learning rate by number of finished optimizer steps."""

from __future__ import annotations

import math
from argparse import Namespace
from typing import Any


class Schedule:
    """Learning rate by number of finished steps: warm-up from ``lr_warmup_init``, then constant, linear or cosine."""

    def __init__(self, args: Namespace, total_steps: int | None) -> None:
        """``total_steps``: steps of the run, used when ``args.lr_decay_iters`` is None; may be None for a constant rate."""
        self.style = args.lr_decay_style
        if self.style not in ("constant", "linear", "cosine"):
            raise ValueError(f"--lr-decay-style {self.style!r} is not one of: constant, linear, cosine")
        self.peak, self.floor, self.start = args.lr, args.min_lr, args.lr_warmup_init
        self.decay_steps = args.lr_decay_iters or total_steps
        if self.decay_steps is None and (self.style != "constant" or args.lr_warmup_fraction):
            raise ValueError(f"--lr-decay-style {self.style} with no known length: set --lr-decay-iters")
        fraction = args.lr_warmup_fraction
        self.warmup_steps = args.lr_warmup_iters if fraction is None else int(fraction * (self.decay_steps or 0))
        self.steps = 0

    def lr(self) -> float:
        """The rate of the next step."""
        if self.steps < self.warmup_steps:
            return self.start + (self.peak - self.start) * (self.steps + 1) / self.warmup_steps
        if self.style == "constant":
            return self.peak
        assert self.decay_steps is not None
        span = max(1, self.decay_steps - self.warmup_steps)
        progress = min(1.0, (self.steps - self.warmup_steps) / span)
        left = 1.0 - progress if self.style == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.floor + (self.peak - self.floor) * left

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = int(state["steps"])
