"""Load the weights of a Hugging Face folder into this rank's part of Megatron's model.

Guarantee: every parameter gets its value, or loading fails with the missing name. A rank maps the files and reads only
its own stage's tensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slime.backends.megatron_utils.config import Shape
from slime.backends.megatron_utils.mapping import recipe, to_megatron
from slime.backends.megatron_utils.parallel import groups
from slime.exceptions import CheckpointError

INDEX = "model.safetensors.index.json"


class HfTensors:
    """The tensors of a folder by name, read on demand."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        index = folder / INDEX
        if index.exists():
            self._files: dict[str, str] = json.loads(index.read_text())["weight_map"]
        elif (folder / "model.safetensors").exists():
            with safe_open(folder / "model.safetensors", framework="pt") as file:
                self._files = dict.fromkeys(file.keys(), "model.safetensors")
        else:
            raise CheckpointError(f"{folder} has no model.safetensors: save the model with safetensors")
        self._folder = folder
        self._open: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Tensor:
        from safetensors import safe_open

        if name not in self._files:
            raise CheckpointError(f"{self._folder} has no tensor {name}")
        file = self._files[name]
        if file not in self._open:
            self._open[file] = safe_open(self._folder / file, framework="pt")
        return self._open[file].get_tensor(name)


@torch.no_grad()
def load_hf_weights(model: Any, folder: Path, shape: Shape) -> None:
    """Fill every parameter of the unwrapped stage ``model``."""
    tensors = HfTensors(folder)
    place = groups().get_tensor_model_parallel_rank(), groups().get_tensor_model_parallel_world_size()
    expert = groups().get_expert_tensor_parallel_rank(), groups().get_expert_tensor_parallel_world_size()
    for name, parameter in model.named_parameters():
        found = recipe(name, shape, first_layer=first_layer(model), first_expert=first_expert(shape))
        rank, size = expert if found.is_expert else place
        value = to_megatron(found.kind, [tensors[part] for part in found.names], shape, rank, size)
        if value.shape != parameter.shape:
            raise CheckpointError(
                f"{folder}: {found.names} make {tuple(value.shape)}, {name} is {tuple(parameter.shape)}"
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
