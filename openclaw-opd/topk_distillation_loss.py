"""The loss of top-K distillation under the name that launch scripts know; `slime.algorithms.losses.topk_distillation` has it."""

from __future__ import annotations

from slime.algorithms.losses.topk_distillation import topk_distillation_loss as topk_distillation_loss_function

__all__ = ["topk_distillation_loss_function"]
