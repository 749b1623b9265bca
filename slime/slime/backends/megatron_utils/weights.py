"""Whole weights under the names of the Hugging Face checkpoint, one parameter at a time.

Guarantees: names, shapes and values are those of the checkpoint that the weights came from, padding of the vocabulary
removed and a tied LM head left out; every rank sees the same names in the same order, so gathering is safe as a collective;
at most one parameter is whole at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from slime.backends.megatron_utils.config import Shape
from slime.backends.megatron_utils.load_hf import first_layer
from slime.backends.megatron_utils.mapping import from_megatron, recipe
from slime.backends.megatron_utils.parallel import groups

Of = Callable[[Tensor], Tensor]


def _gathered(value: Tensor, group: Any) -> list[Tensor]:
    """``value`` of every rank of ``group``, in order."""
    size = dist.get_world_size(group)
    if size == 1:
        return [value]
    parts = [torch.empty_like(value) for _ in range(size)]
    dist.all_gather(parts, value.contiguous(), group=group)
    return parts


def _stage_weights(model: Any, shape: Shape, of: Of) -> Iterator[tuple[str, Tensor]]:
    """The Hugging Face tensors of this pipeline stage; collective over its tensor and expert parallel ranks."""
    for name, parameter in model.named_parameters():
        if name == "output_layer.weight" and shape.tied:
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

    ``of`` chooses something else of each parameter than its value, of the same shape. Must be run to its end.
    """
    group = groups().get_pipeline_model_parallel_group()
    mine = groups().get_pipeline_model_parallel_rank()
    for stage in range(dist.get_world_size(group)):
        if dist.get_world_size(group) == 1:
            for name, tensor in _stage_weights(model, shape, of):
                yield name, tensor.to(dtype or tensor.dtype)
            continue
        source = dist.get_global_rank(group, stage)
        device = next(model.parameters()).device
        own = _stage_weights(model, shape, of) if stage == mine else iter(())
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
