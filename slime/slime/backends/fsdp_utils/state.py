"""What an FSDP rank changes and stores: AdamW, checkpoint state, and whole weights under Hugging Face names.

Guarantees:

* A step with a NaN or infinite gradient norm changes nothing (weights, moments, schedule) on any rank, because the
  global norm decides. Weight decay applies to matrices only.
* A checkpoint is torch DCP with weights and optimizer by parameter name, which any number of ranks can load. A LoRA run
  stores only its adapters; parameters frozen by name are stored too.
* Whole weights come one at a time, in the same order on every rank, so gathering is safe as a collective; a tied LM head
  appears once, as the embedding. A weight is cast before it is gathered, which gives the same bits with fewer bytes,
  because a cast is elementwise. Weights with an adapter are gathered and merged in float32, into a copy, and cast last,
  so the sum is rounded once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from slime.args import Arguments
from slime.backends.fsdp_utils.model import ADAPTER, PolicyModel, lora_layers
from slime.backends.trainer.schedule import Schedule
from slime.backends.trainer.snapshot import Changing
from slime.backends.trainer.trainable import MergedChange, merged_weight, write_adapter
from slime.checkpoints.all_ranks import on_rank_zero
from slime.checkpoints.checkpoint_folder import read_meta, restore_rng, write
from slime.exceptions import CheckpointError

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


def save_checkpoint(
    root: Path, iteration: int, model: torch.nn.Module, optimizer: torch.optim.AdamW, meta: dict[str, Any]
) -> Path:
    """Write a checkpoint, not yet marked as the latest, and return its folder; collective."""
    start_moments(optimizer)

    def write_state(path: Path) -> None:
        weights, moments = get_state_dict(model, optimizer, options=StateDictOptions(ignore_frozen_params=meta["lora"]))
        dcp_save({"model": weights, "optimizer": moments}, checkpoint_id=str(path))

    return write(root, iteration, meta, write_state)


def load_checkpoint(
    folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, wants_lora: bool
) -> dict[str, Any]:
    """Load ``folder`` into ``model`` and ``optimizer`` and return its metadata; collective, on any number of ranks."""
    meta = read_meta(folder)
    if meta.get("backend", "fsdp") != "fsdp":
        raise CheckpointError(f"{folder} was written by {meta['backend']}: add --train-backend {meta['backend']}")
    if meta["lora"] != wants_lora:
        kind = "LoRA adapters" if meta["lora"] else "full weights"
        raise CheckpointError(f"{folder} holds {kind}: {'add' if meta['lora'] else 'remove'} --use-lora")
    options = StateDictOptions(ignore_frozen_params=meta["lora"], strict=not meta["lora"])
    weights, moments = get_state_dict(model, optimizer, options=options)
    dcp_load({"model": weights, "optimizer": moments}, checkpoint_id=str(folder / "state"))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments, options=options)
    restore_rng(folder, meta)
    return meta


Of = Callable[[Tensor], Tensor]


def gather(parameter: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return the whole tensor of a shard on ``device``, cast to ``dtype`` before gathering; collective."""
    value = parameter.detach().to(device).to(dtype or parameter.dtype)
    return value.full_tensor() if isinstance(value, DTensor) else value


def full_weights(
    policy: PolicyModel, *, dtype: torch.dtype, device: torch.device, of: Of = torch.Tensor.detach
) -> Iterator[tuple[str, Tensor]]:
    """Yield ``(name, tensor)`` of every weight, LoRA merged, cast to ``dtype``; collective, must be exhausted.

    ``of`` returns the value of a parameter's shard. If rounding loses much of what adapters changed, a warning says so.
    """
    change = MergedChange()
    adapters = lora_layers(policy.hf)
    parameters = dict(policy.hf.named_parameters())
    for name, parameter in parameters.items():
        if ".lora_" in name:
            continue
        owner = name.removesuffix(".base_layer.weight")
        merged = owner in adapters and owner != name
        value = gather(of(parameter), device, None if merged else dtype)
        if merged:
            sides = (parameters[f"{owner}.lora_{side}.{ADAPTER}.weight"] for side in "AB")
            lora_a, lora_b = (gather(of(side), device) for side in sides)
            whole = merged_weight(value, lora_a, lora_b, adapters[owner].scaling[ADAPTER])
            value = change.rounded(value, whole, dtype)
        yield name.replace(".base_layer.", "."), value.to(dtype)
    change.log(dtype)


def adapter_weights(policy: PolicyModel, *, device: torch.device, of: Of = torch.Tensor.detach) -> dict[str, Tensor]:
    """Return the adapter tensors under PEFT's file names, on the CPU; collective. ``of`` returns a shard's value."""
    return {
        "base_model.model." + name.replace(f".{ADAPTER}.", "."): gather(of(parameter), device).cpu()
        for name, parameter in policy.hf.named_parameters()
        if ".lora_" in name
    }


def export_adapter(args: Arguments, policy: PolicyModel, path: Path, *, device: torch.device) -> None:
    """Write ``adapter_model.safetensors`` and ``adapter_config.json`` as ``PeftModel.from_pretrained`` reads them."""
    tensors = adapter_weights(policy, device=device)
    on_rank_zero(lambda: write_adapter(args, tensors, path))
