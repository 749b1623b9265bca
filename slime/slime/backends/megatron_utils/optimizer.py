"""Megatron's distributed AdamW: each data-parallel rank owns a slice of the moments and of the float32 weights.

Guarantees: a step with a NaN or infinite gradient norm changes nothing (weights, moments, schedule) on any rank, because the
global norm decides. Weight decay applies to matrices only.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import torch

from slime.args import Arguments
from slime.backends.megatron_utils.cpu_device import model_device
from slime.backends.trainer.schedule import Schedule

logger = logging.getLogger(__name__)


def build_optimizer(args: Arguments, model: Any, *, device: torch.device) -> Any:
    """Return the optimizer of a data-parallel wrapped ``model``."""
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer, get_standard_config_overrides

    config = OptimizerConfig(
        optimizer="adam",
        lr=args.lr,
        min_lr=args.min_lr,
        weight_decay=args.weight_decay,
        adam_beta1=args.adam_beta1,
        adam_beta2=args.adam_beta2,
        adam_eps=args.adam_eps,
        clip_grad=args.clip_grad,
        bf16=model.config.bf16,
        params_dtype=model.config.params_dtype,
        use_distributed_optimizer=True,
        use_precision_aware_optimizer=args.use_precision_aware_optimizer,
        optimizer_cpu_offload=args.optimizer_cpu_offload,
        optimizer_offload_fraction=1.0 if args.optimizer_cpu_offload else 0.0,
        overlap_cpu_optimizer_d2h_h2d=args.overlap_cpu_optimizer_d2h_h2d,
    )
    with model_device(device):
        optimizer = get_megatron_optimizer(
            config,
            [model],
            config_overrides=get_standard_config_overrides(config),
            use_gloo_process_groups=device.type == "cuda",
        )
    for group in optimizer.param_groups:  # as Megatron's own schedule would
        group["weight_decay"] = args.weight_decay * group.get("wd_mult", 1.0)
    return optimizer


def apply_gradients(
    model: Any, optimizer: Any, schedule: Schedule, clip_grad: float, *, device: torch.device, hold: bool = False
) -> tuple[float, float, bool]:
    """Clip to the global norm ``clip_grad`` (0 or less: no clipping), step, and clear the gradients.

    ``hold``: take no step.

    Returns:
        The norm before clipping, the learning rate, and whether the step was taken.
    """
    from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32

    rate = schedule.lr()
    with model_device(device):
        optimizer.prepare_grads()
        norm = float(optimizer.get_grad_norm())
        taken = math.isfinite(norm) and not hold
        if taken:
            for part in getattr(optimizer, "chained_optimizers", [optimizer]):
                decoupled = part.config.use_precision_aware_optimizer_no_fp8_or_ds_fp8
                if clip_grad > 0:
                    clip_grad_by_total_norm_fp32(part.get_parameters(), clip_grad, norm, decoupled)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step_with_ready_grads()
            schedule.steps += 1
        elif not math.isfinite(norm):
            logger.error("gradient norm is %s: skipping this optimizer step, the weights stay unchanged", norm)
        optimizer.zero_grad()
        model.zero_grad_buffer()
    return norm, rate, taken
