"""AdamW over the trainable parameters, and the device tensors of model and optimizer.

Guarantees: a step with a NaN or infinite gradient norm changes nothing (weights, moments, schedule) on any rank, because the
global norm decides. Weight decay applies to matrices only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from slime.args import Arguments
from slime.backends.trainer.schedule import Schedule
from slime.backends.trainer.snapshot import Changing

logger = logging.getLogger(__name__)


def build_optimizer(args: Arguments, model: nn.Module) -> torch.optim.AdamW:
    """Return AdamW (Loshchilov & Hutter 2019) over the parameters that require a gradient."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.dim() >= 2], "weight_decay": args.weight_decay},
        {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(
        groups, lr=args.lr, betas=(args.adam_beta1, args.adam_beta2), eps=args.adam_eps, fused=True
    )


def start_moments(optimizer: torch.optim.AdamW) -> None:
    """Create the initial moments of parameters that no step has changed yet.

    A vision tower has none until a rollout has an image, but a checkpoint needs them for every parameter.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not optimizer.state.get(parameter):
                optimizer.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }


def apply_gradients(
    model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Schedule, clip_grad: float, *, hold: bool = False
) -> tuple[float, float, bool]:
    """Clip to the global norm ``clip_grad`` (0 or less: no clipping), step, and clear the gradients.

    ``hold``: take no step.

    Returns:
        The norm before clipping, the learning rate, and whether the step was taken.
    """
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    rate = schedule.lr()
    finite = bool(torch.isfinite(norm))
    taken = finite and not hold
    if taken:
        if clip_grad > 0:
            torch.nn.utils.clip_grads_with_norm_(model.parameters(), clip_grad, norm)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        schedule.steps += 1
    elif not finite:
        logger.error("gradient norm is %s: skipping this optimizer step, the weights stay unchanged", norm.item())
    optimizer.zero_grad(set_to_none=True)
    return float(norm), rate, taken


def free_whole_parameters(model: nn.Module) -> None:
    """Reshard the root's parameters, which a forward pass leaves gathered."""
    if isinstance(model, FSDPModule):
        model.reshard()


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[torch.Tensor]:
    """Yield this rank's parameters, their gradients, the buffers, and the moments of ``optimizer``."""
    free_whole_parameters(model)
    for parameter in model.parameters():
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad
    yield from model.buffers()
    for state in optimizer.state.values() if optimizer is not None else ():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def changing(
    model: nn.Module, optimizer: torch.optim.AdamW, schedule: Schedule, others: Sequence[torch.Tensor] = ()
) -> Changing:
    """Return what a step changes, ``others`` included; every parameter gets its moments."""
    free_whole_parameters(model)
    start_moments(optimizer)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Changing([*trained, *model.buffers()], others, [optimizer], schedule)
