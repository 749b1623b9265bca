"""Load the weights of a Hugging Face folder into this rank's part of Megatron's model.

Guarantee: every parameter gets its value, or loading fails with the missing name. A rank maps the files and reads only
its own stage's tensors.

Parameters map to the Hugging Face tensors they are made of by pure functions, exact both ways. Kinds:

``whole``    the same tensor on every tensor-parallel rank;
``vocab``    rows, split over ranks, padded with zero rows to :func:`padded_vocab_size`;
``qkv``      per key/value head its query heads, the key head, the value head, in this order; split over ranks by those groups;
``pair``     gate above up; each is split over ranks separately;
``columns``  split over ranks by columns (the input of a row parallel linear).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from slime.backends.megatron_utils.config import Shape, padded_vocab_size
from slime.backends.megatron_utils.parallel import groups
from slime.exceptions import CheckpointError
from slime.utils.hf_checkpoint import files_of_weights

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"mlp\.experts\.(?:local_experts\.(\d+)\.(linear_fc\d)\.weight|(linear_fc\d)\.weight(\d+))")

_TOP = {
    "embedding.word_embeddings.weight": ("vocab", ("model.embed_tokens.weight",)),
    "output_layer.weight": ("vocab", ("lm_head.weight",)),
    "decoder.final_layernorm.weight": ("whole", ("model.norm.weight",)),
}
_QKV = ("q_proj", "k_proj", "v_proj")
# Names without and with Transformer Engine, which fuses a norm into the linear that follows it.
_IN_LAYER = {
    "input_layernorm.weight": ("whole", ("input_layernorm.weight",)),
    "self_attention.linear_qkv.layer_norm_weight": ("whole", ("input_layernorm.weight",)),
    "self_attention.linear_qkv.weight": ("qkv", tuple(f"self_attn.{name}.weight" for name in _QKV)),
    "self_attention.linear_qkv.bias": ("qkv", tuple(f"self_attn.{name}.bias" for name in _QKV)),
    "self_attention.q_layernorm.weight": ("whole", ("self_attn.q_norm.weight",)),
    "self_attention.k_layernorm.weight": ("whole", ("self_attn.k_norm.weight",)),
    "self_attention.linear_proj.weight": ("columns", ("self_attn.o_proj.weight",)),
    "pre_mlp_layernorm.weight": ("whole", ("post_attention_layernorm.weight",)),
    "mlp.linear_fc1.layer_norm_weight": ("whole", ("post_attention_layernorm.weight",)),
    "mlp.linear_fc1.weight": ("pair", ("mlp.gate_proj.weight", "mlp.up_proj.weight")),
    "mlp.linear_fc2.weight": ("columns", ("mlp.down_proj.weight",)),
    "mlp.router.weight": ("whole", ("mlp.gate.weight",)),
}
_IN_EXPERT = {
    "linear_fc1": ("pair", ("gate_proj.weight", "up_proj.weight")),
    "linear_fc2": ("columns", ("down_proj.weight",)),
}


@dataclass(frozen=True)
class Recipe:
    """How to build a parameter: its kind and the Hugging Face names, in order."""

    kind: str
    names: tuple[str, ...]
    is_expert: bool = False


def recipe(name: str, shape: Shape, *, first_layer: int = 0, first_expert: int = 0) -> Recipe:
    """Return the recipe of the parameter ``name`` of a pipeline stage.

    Args:
        name: name in the unwrapped model.
        shape: dimensions of the model.
        first_layer: index of this stage's first layer in the whole model.
        first_expert: index of this rank's first expert.

    Raises:
        KeyError: no known Hugging Face model has this parameter.
    """
    if name in _TOP:
        kind, names = _TOP[name]
        return Recipe(kind, ("model.embed_tokens.weight",) if name == "output_layer.weight" and shape.tied else names)
    match = _LAYER.fullmatch(name)
    if match is None:
        raise KeyError(f"the parameter {name} has no counterpart in a Hugging Face checkpoint")
    layer, rest = first_layer + int(match.group(1)), match.group(2)
    prefix = f"model.layers.{layer}."
    expert = _EXPERT.fullmatch(rest)
    if expert is not None:
        number = first_expert + int(expert.group(1) or expert.group(4))
        kind, names = _IN_EXPERT[expert.group(2) or expert.group(3)]
        return Recipe(kind, tuple(f"{prefix}mlp.experts.{number}.{part}" for part in names), is_expert=True)
    if rest not in _IN_LAYER:
        raise KeyError(f"the parameter {name} has no counterpart in a Hugging Face checkpoint")
    kind, names = _IN_LAYER[rest]
    return Recipe(kind, tuple(prefix + part for part in names))


def to_megatron(kind: str, tensors: Sequence[Tensor], shape: Shape, rank: int, size: int) -> Tensor:
    """Return the part on ``rank`` of ``size`` ranks of the parameter built from Hugging Face ``tensors``."""
    if kind == "whole":
        return tensors[0]
    if kind == "vocab":
        missing = padded_vocab_size(shape.vocab_size, size) - len(tensors[0])
        rows = torch.nn.functional.pad(tensors[0], (0, 0, 0, missing)) if missing else tensors[0]
        return rows.chunk(size)[rank].contiguous()
    if kind == "columns":
        return tensors[0].chunk(size, dim=1)[rank].contiguous()
    if kind == "pair":
        return torch.cat([tensor.chunk(size)[rank] for tensor in tensors])
    if kind == "qkv":
        grouped = [tensor.unflatten(0, (shape.groups, -1)) for tensor in tensors]
        return torch.cat(grouped, dim=1).chunk(size)[rank].flatten(0, 1).contiguous()
    raise KeyError(kind)


def from_megatron(kind: str, parts: Sequence[Tensor], shape: Shape) -> list[Tensor]:
    """Return the Hugging Face tensors of a parameter from its tensor-parallel ``parts``, in rank order."""
    if kind == "whole":
        return [parts[0]]
    if kind == "vocab":
        return [torch.cat(list(parts))[: shape.vocab_size]]
    if kind == "columns":
        return [torch.cat(list(parts), dim=1)]
    if kind == "pair":
        halves = [part.chunk(2) for part in parts]
        return [torch.cat([half[which] for half in halves]) for which in (0, 1)]
    if kind == "qkv":
        queries = shape.heads // shape.groups
        grouped = torch.cat([part.unflatten(0, (shape.groups // len(parts), -1)) for part in parts])
        sizes = [queries * shape.head_dim, shape.head_dim, shape.head_dim]
        return [tensor.flatten(0, 1).contiguous() for tensor in grouped.split(sizes, dim=1)]
    raise KeyError(kind)


class HfTensors:
    """The tensors of a folder by name, read on demand."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._files = folder, files_of_weights(folder)
        self._open: dict[Path, Any] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._files:
            raise CheckpointError(f"{self._folder} has no tensor {name}")
        file = self._files[name]
        if file not in self._open:
            self._open[file] = safe_open(file, framework="pt")
        return self._open[file].get_tensor(name)


@torch.no_grad()
def load_hf_weights(model: Any, folder: Path, shape: Shape) -> None:
    """Fill every parameter of the unwrapped stage ``model``."""
    tensors = HfTensors(folder)
    place = groups().get_tensor_model_parallel_rank(), groups().get_tensor_model_parallel_world_size()
    expert = groups().get_expert_tensor_parallel_rank(), groups().get_expert_tensor_parallel_world_size()
    for name, parameter in model.named_parameters():
        result = recipe(name, shape, first_layer=first_layer(model), first_expert=first_expert(shape))
        rank, size = expert if result.is_expert else place
        value = to_megatron(result.kind, [tensors[part] for part in result.names], shape, rank, size)
        if value.shape != parameter.shape:
            raise CheckpointError(
                f"{folder}: {result.names} make {tuple(value.shape)}, {name} is {tuple(parameter.shape)}"
            )
        parameter.copy_(value)


def first_layer(model: Any) -> int:
    """Return the index of this stage's first layer in the whole model."""
    return model.decoder.layers[0].layer_number - 1


def first_expert(shape: Shape) -> int:
    """Return the index of this rank's first expert."""
    if not shape.experts:
        return 0
    return groups().get_expert_model_parallel_rank() * (
        shape.experts // groups().get_expert_model_parallel_world_size()
    )
