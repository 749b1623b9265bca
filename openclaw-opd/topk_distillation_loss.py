"""`slime.algorithms.losses.topk_distillation` under its name in launch scripts."""

from __future__ import annotations

from slime.algorithms.losses.topk_distillation import topk_distillation_loss as topk_distillation_loss_function

__all__ = ["topk_distillation_loss_function"]
