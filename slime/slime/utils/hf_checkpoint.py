"""Read a Hugging Face checkpoint folder (safetensors) tensor by tensor, on the CPU.

Guarantee: only one tensor is in memory at a time, unless the caller keeps it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from slime.exceptions import CheckpointError
from slime.utils.model_config import read_config

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Data types by their names in flags and ``config.json``."""
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LANGUAGE_MODEL = "model.language_model."
"""Prefix of the language model's weights inside a larger model."""
_INSIDE = (LANGUAGE_MODEL, "lm_head.")


def files_of_weights(folder: Path) -> dict[str, Path]:
    """Return the file that holds each weight.

    Raises:
        CheckpointError: the folder has no safetensors weights, or a file is missing.
    """
    if (folder / INDEX).is_file():
        files = {name: folder / file for name, file in json.loads((folder / INDEX).read_text())["weight_map"].items()}
        missing = sorted({path.name for path in files.values() if not path.is_file()})
        if missing:
            raise CheckpointError(f"{folder} is incomplete: {', '.join(missing)} is missing; copy or download it again")
        return files
    if not (folder / SINGLE).is_file():
        raise CheckpointError(f"{folder} has no weights in safetensors ({SINGLE} or {INDEX})")
    with safe_open(folder / SINGLE, "pt") as file:
        return dict.fromkeys(file.keys(), folder / SINGLE)


def read_weights(folder: Path, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[tuple[str, Tensor]]:
    """Yield ``(name, tensor)`` of the ``wanted`` weights, file by file."""
    files = files_of_weights(folder)
    for path in dict.fromkeys(files.values()):
        with safe_open(path, "pt") as file:
            for name in filter(wanted, file.keys()):
                yield name, file.get_tensor(name)


def language_model(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the language model's weights."""
    larger = bool(read_config(folder).get("text_config"))
    return weight_shapes(folder, lambda name: not larger or name.startswith(_INSIDE))


def weight_shapes(folder: Path, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the ``wanted`` weights."""
    shapes = {}
    for name, path in files_of_weights(folder).items():
        if wanted(name):
            with safe_open(path, "pt") as file:
                shapes[name] = tuple(file.get_slice(name).get_shape())
    return shapes


def saved_dtype(folder: Path) -> torch.dtype:
    """Return the dtype in ``config.json``, by default float32."""
    config = read_config(folder)
    text = config.get("text_config") or {}
    name = config.get("dtype") or config.get("torch_dtype") or text.get("dtype") or text.get("torch_dtype")
    return getattr(torch, name or "float32")


def is_tied_head(config: dict[str, Any], name: str) -> bool:
    """Return whether ``name`` is an LM head that is tied to the embedding."""
    tied = config.get("tie_word_embeddings", (config.get("text_config") or {}).get("tie_word_embeddings"))
    return name == "lm_head.weight" and bool(tied)


def name_in(names: Iterable[str], name: str) -> str:
    """Return the name of the language model's weight ``name`` in a checkpoint with ``names``."""
    inner = LANGUAGE_MODEL + name.removeprefix("model.")
    return inner if name not in names and inner in names else name


def beside_the_language_model(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights outside the language model, such as a vision tower or a draft head."""
    if read_config(folder).get("text_config"):
        yield from read_weights(folder, lambda name: not name.startswith(_INSIDE))
