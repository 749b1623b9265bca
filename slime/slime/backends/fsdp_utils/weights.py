"""Whole weights under Hugging Face names, one tensor at a time, and a LoRA adapter in PEFT's format.

A weight is cast before it is gathered. That moves half the bytes of float32 shards and gives the same bits, because a
cast is elementwise. Weights with an adapter are gathered and merged in float32 and cast last, so the sum is rounded
once.

Guarantees: the live parameters are not touched (LoRA is merged into a copy of one tensor). A tied LM head appears once,
as the embedding. Every rank sees the same names in the same order, so gathering is safe as a collective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from slime.args import Arguments
from slime.backends.fsdp_utils import lora
from slime.backends.fsdp_utils.model import PolicyModel
from slime.backends.trainer.lora import MergedChange, merged_weight, write_adapter
from slime.checkpoints.all_ranks import on_rank_zero

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
    adapters = lora.lora_layers(policy.hf)
    parameters = dict(policy.hf.named_parameters())
    for name, parameter in parameters.items():
        if ".lora_" in name:
            continue
        owner = name.removesuffix(".base_layer.weight")
        merged = owner in adapters and owner != name
        value = gather(of(parameter), device, None if merged else dtype)
        if merged:
            sides = (parameters[f"{owner}.lora_{side}.{lora.ADAPTER}.weight"] for side in "AB")
            lora_a, lora_b = (gather(of(side), device) for side in sides)
            whole = merged_weight(value, lora_a, lora_b, adapters[owner].scaling[lora.ADAPTER])
            value = change.rounded(value, whole, dtype)
        yield name.replace(".base_layer.", "."), value.to(dtype)
    change.log(dtype)


def adapter_weights(policy: PolicyModel, *, device: torch.device, of: Of = torch.Tensor.detach) -> dict[str, Tensor]:
    """Return the adapter tensors under PEFT's file names, on the CPU; collective. ``of`` returns a shard's value."""
    return {
        "base_model.model." + name.replace(f".{lora.ADAPTER}.", "."): gather(of(parameter), device).cpu()
        for name, parameter in policy.hf.named_parameters()
        if ".lora_" in name
    }


def export_adapter(args: Arguments, policy: PolicyModel, path: Path, *, device: torch.device) -> None:
    """Write ``adapter_model.safetensors`` and ``adapter_config.json`` as ``PeftModel.from_pretrained`` reads them."""
    tensors = adapter_weights(policy, device=device)
    on_rank_zero(lambda: write_adapter(args, tensors, path))
