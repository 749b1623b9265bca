"""The learning rate as a function of finished optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from slime.args import Arguments
from slime.exceptions import CheckpointError

STYLES = ("constant", "linear", "cosine", "WSD")
# Remaining share of (peak - floor), as a function of decay progress from 0 to 1.
_SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
    "exponential": lambda progress: 2.0 * 0.5**progress - 1.0,
    "minus_sqrt": lambda progress: 1.0 - math.sqrt(progress),
}
_FROM_FLAGS = ("style", "peak", "floor", "start", "decay_steps", "warmup_steps", "wsd_style", "wsd_steps")


class Schedule:
    """Learning rate after a number of steps: warm-up from ``lr_warmup_init``, then ``--lr-decay-style``.

    ``WSD`` (warm-up, stable, decay; Hu et al. 2024) stays at the peak until ``lr_wsd_decay_iters`` steps before the end.
    """

    def __init__(self, args: Arguments, total_steps: int | None) -> None:
        """``total_steps``: steps of the run, used without ``args.lr_decay_iters``; may be None for a constant rate."""
        self.style = args.lr_decay_style
        if self.style not in STYLES:
            raise ValueError(f"--lr-decay-style {self.style!r} is not one of: {', '.join(STYLES)}")
        self.peak, self.floor, self.start = args.lr, args.min_lr, args.lr_warmup_init
        self.decay_steps = args.lr_decay_iters or total_steps
        if self.decay_steps is None and (self.style != "constant" or args.lr_warmup_fraction):
            raise ValueError(f"--lr-decay-style {self.style} needs a known length: add --lr-decay-iters N")
        fraction = args.lr_warmup_fraction
        self.warmup_steps = args.lr_warmup_iters if fraction is None else int(fraction * (self.decay_steps or 0))
        self.wsd_style, self.wsd_steps = args.lr_wsd_decay_style, args.lr_wsd_decay_iters
        self.steps = 0

    @classmethod
    def of_run(cls, args: Arguments) -> Schedule:
        """Return the schedule of a run of ``--num-rollout`` rollouts."""
        return cls(args, (args.num_steps_per_rollout or 1) * args.num_rollout if args.num_rollout else None)

    def lr(self) -> float:
        """Return the learning rate of the next step."""
        if self.steps < self.warmup_steps:
            return self.start + (self.peak - self.start) * (self.steps + 1) / self.warmup_steps
        if self.style == "constant":
            return self.peak
        assert self.decay_steps is not None
        start, style = self.warmup_steps, self.style
        if style == "WSD":
            start, style = max(start, self.decay_steps - (self.wsd_steps or 0)), self.wsd_style
        progress = min(1.0, max(0.0, (self.steps - start) / max(1, self.decay_steps - start)))
        return self.floor + (self.peak - self.floor) * _SHAPES[style](progress)

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("steps", *_FROM_FLAGS)}

    def load_state_dict(self, state: dict[str, Any], *, everything: bool = False) -> None:
        """Restore the number of steps; with ``everything`` also the earlier run's schedule flags."""
        self.steps = int(state["steps"])
        if not everything:
            return
        missing = [name for name in _FROM_FLAGS if name not in state]
        if missing:
            raise CheckpointError(
                f"the checkpoint holds no {missing[0]} of a schedule: remove --use-checkpoint-lr-scheduler"
            )
        for name in _FROM_FLAGS:
            setattr(self, name, state[name])
