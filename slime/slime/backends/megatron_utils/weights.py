"""Whole weights under Hugging Face names, one parameter at a time.

A weight is cast before it is gathered, which gives the same bits with fewer bytes. Weights of a LoRA run are gathered
and merged in their own type and cast last, so the sum is rounded once.

Guarantees: names, shapes and values are those of the original checkpoint, without vocabulary padding, without a tied LM
head, and with LoRA merged into a copy. Every rank sees the same names in the same order, so gathering is safe as a
collective. At most one parameter is whole at a time, plus a LoRA run's adapters of one pipeline stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from slime.backends.megatron_utils.config import Shape
from slime.backends.megatron_utils.load_hf import first_layer
from slime.backends.megatron_utils.lora import adapters_of
from slime.backends.megatron_utils.mapping import from_megatron, recipe
from slime.backends.megatron_utils.parallel import groups
from slime.backends.trainer.lora import MergedChange, merged_weight

Of = Callable[[Tensor], Tensor]


def _gathered(value: Tensor, group: Any) -> list[Tensor]:
    """Return ``value`` of every rank of ``group``, in order."""
    size = dist.get_world_size(group)
    if size == 1:
        return [value]
    parts = [torch.empty_like(value) for _ in range(size)]
    dist.all_gather(parts, value.contiguous(), group=group)
    return parts


def _stage_adapters(model: Any, of: Of) -> Iterator[tuple[str, float, Tensor, Tensor]]:
    """Yield module, scale and whole A and B of this stage's adapters; collective over tensor-parallel ranks."""
    group = groups().get_tensor_model_parallel_group()
    for linear in model.adapters.linears():
        for name in linear.targets:
            lora_a, lora_b = (of(side) for side in linear.pair(name))
            if linear.is_row:
                lora_a = torch.cat(_gathered(lora_a, group), dim=1)
            else:
                lora_b = torch.cat(_gathered(lora_b, group))
            yield linear.prefix + name, linear.scale, lora_a, lora_b


def _merged_stage(model: Any, shape: Shape, of: Of, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of :func:`_stage_weights` with adapters merged and rounded to ``dtype``, float32 without one."""
    change = MergedChange()
    adapters = {f"{name}.weight": (a, b, scale) for name, scale, a, b in _stage_adapters(model, of)}
    for name, value in _stage_weights(model, shape, of):
        if name in adapters:
            value = change.rounded(value, merged_weight(value, *adapters[name]), dtype or torch.float32)
        yield name, value
    change.log(dtype or torch.float32)


def _stage_weights(model: Any, shape: Shape, of: Of) -> Iterator[tuple[str, Tensor]]:
    """Yield this stage's Hugging Face tensors; collective over tensor and expert parallel ranks."""
    for name, parameter in model.named_parameters():
        if (name == "output_layer.weight" and shape.tied) or name.startswith("adapters."):
            continue
        value, layer = of(parameter), first_layer(model)
        if not recipe(name, shape).is_expert:
            found = recipe(name, shape, first_layer=layer)
            parts = _gathered(value, groups().get_tensor_model_parallel_group())
            yield from zip(found.names, from_megatron(found.kind, parts, shape), strict=True)
            continue
        parts = _gathered(value, groups().get_expert_tensor_parallel_group())
        ranks = groups().get_expert_model_parallel_world_size()
        found = [
            recipe(name, shape, first_layer=layer, first_expert=r * (shape.experts // ranks)) for r in range(ranks)
        ]
        whole = from_megatron(found[0].kind, parts, shape)
        owned = [_gathered(tensor, groups().get_expert_model_parallel_group()) for tensor in whole]
        for rank, one in enumerate(found):
            yield from zip(one.names, [tensors[rank] for tensors in owned], strict=True)


@torch.no_grad()
def full_weights(
    model: Any, shape: Shape, *, dtype: torch.dtype | None = None, of: Of = torch.Tensor.detach
) -> Iterator[tuple[str, Tensor]]:
    """Yield ``(name, tensor)`` of every weight of the unwrapped ``model``, cast to ``dtype``; collective over all ranks.

    ``of`` selects another tensor of each parameter, of the same shape. The iterator must be exhausted.
    """
    if adapters_of(model) is not None:
        yield from _of_all_stages(model, lambda: _merged_stage(model, shape, of, dtype), dtype)
        return

    def cast(parameter: Tensor) -> Tensor:
        value = of(parameter)
        return value.to(dtype or value.dtype)

    yield from _of_all_stages(model, lambda: _stage_weights(model, shape, cast), dtype)


@torch.no_grad()
def adapter_weights(model: Any, *, of: Of = torch.Tensor.detach) -> dict[str, Tensor]:
    """Return the adapters of the unwrapped ``model`` under PEFT's file names, whole, on the CPU; collective over all ranks."""

    def stage() -> Iterator[tuple[str, Tensor]]:
        for name, _, lora_a, lora_b in _stage_adapters(model, of):
            yield f"base_model.model.{name}.lora_A.weight", lora_a
            yield f"base_model.model.{name}.lora_B.weight", lora_b

    return {name: value.cpu() for name, value in _of_all_stages(model, stage, None)}


def _of_all_stages(
    model: Any, stage_tensors: Callable[[], Iterator[tuple[str, Tensor]]], dtype: torch.dtype | None
) -> Iterator[tuple[str, Tensor]]:
    """Yield ``stage_tensors`` of each pipeline stage in turn, cast to ``dtype``; collective over all ranks."""
    group = groups().get_pipeline_model_parallel_group()
    mine = groups().get_pipeline_model_parallel_rank()
    for stage in range(dist.get_world_size(group)):
        if dist.get_world_size(group) == 1:
            for name, tensor in stage_tensors():
                yield name, tensor.to(dtype or tensor.dtype)
            continue
        source = dist.get_global_rank(group, stage)
        device = next(model.parameters()).device
        own = stage_tensors() if stage == mine else iter(())
        while True:
            item = next(own, None) if stage == mine else None
            header = [None if item is None else (item[0], item[1].shape, dtype or item[1].dtype)]
            dist.broadcast_object_list(header, src=source, group=group)
            if header[0] is None:
                break
            name, size, kind = header[0]
            tensor = torch.empty(size, dtype=kind, device=device) if item is None else item[1].to(kind).contiguous()
            dist.broadcast(tensor, src=source, group=group)
            yield name, tensor
