"""AdamW over the trainable parameters, the learning rate by step, and the one place where gradients become an update.

Guarantees: a step with a NaN or infinite gradient norm changes nothing (weights, moments, schedule) on any rank, because the
decision is taken on the global norm; weight decay applies to matrices only.
"""

from __future__ import annotations

import logging
import math
from argparse import Namespace
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

logger = logging.getLogger(__name__)


def build_optimizer(args: Namespace, model: nn.Module) -> torch.optim.AdamW:
    """Return AdamW (Loshchilov & Hutter 2019) over the parameters that need a gradient."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.dim() >= 2], "weight_decay": args.weight_decay},
        {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(args.adam_beta1, args.adam_beta2), eps=args.adam_eps)


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


def apply_gradients(
    model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Schedule, clip_grad: float
) -> tuple[float, float, bool]:
    """Clip to the global norm ``clip_grad`` (not positive: do not clip), step, and clear the gradients.

    Returns:
        The norm before clipping, the learning rate, and whether the step was taken.
    """
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    rate = schedule.lr()
    taken = bool(torch.isfinite(norm))
    if taken:
        if clip_grad > 0:
            torch.nn.utils.clip_grads_with_norm_(model.parameters(), clip_grad, norm)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        schedule.steps += 1
    else:
        logger.error("gradient norm is %s: this optimizer step is skipped, the weights stay as they were", norm.item())
    optimizer.zero_grad(set_to_none=True)
    return float(norm), rate, taken
