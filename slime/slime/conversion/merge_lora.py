"""Merge a LoRA adapter into its base model: ``W + alpha / r * B A`` in float32, one tensor at a time.

The adapter is a folder in PEFT's format, such as ``checkpoints/iter_0000010/adapter`` of a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from slime.backends.trainer.trainable import MergedChange, merged_weight
from slime.checkpoints.checkpoint_folder import export_hf
from slime.conversion import checks
from slime.utils.hf_checkpoint import files_of_weights, name_in, read_config, read_weights

PREFIX = "base_model.model."
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
# PEFT options that change what is added to a weight, with their neutral values.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "bias": ("none", None),
    "modules_to_save": (None, []),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "lora_bias": (False, None),
}


def read_adapter(folder: Path) -> tuple[float, dict[str, tuple[Tensor, Tensor]]]:
    """Return the scale and ``{weight name: (A, B)}``.

    Raises:
        ToolError: the folder holds no plain LoRA adapter.
    """
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise checks.ToolError(f"{folder} is not a LoRA adapter: it has no {name}")
    config = json.loads((folder / CONFIG).read_text())
    odd = [name for name, plain in UNSUPPORTED.items() if config.get(name) not in plain]
    if config.get("peft_type", "LORA") != "LORA" or odd:
        raise checks.ToolError(
            f"{folder / CONFIG}: only plain LoRA can be merged, but this has {', '.join(odd) or 'another'}"
        )
    rank, alpha = config["r"], config["lora_alpha"]
    scale = alpha / rank**0.5 if config.get("use_rslora") else alpha / rank
    tensors = load_file(folder / WEIGHTS)
    return scale, pair(tensors, rank, folder)


def pair(tensors: Mapping[str, Tensor], rank: int, folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Return ``{weight name: (A, B)}`` with A ``[r, in]`` and B ``[out, r]``; no tensor lacks its partner."""
    pairs = {}
    for name, tensor in tensors.items():
        if not name.endswith(".lora_A.weight"):
            continue
        other = tensors.get(name.replace(".lora_A.", ".lora_B."))
        if other is None or tensor.size(0) != rank or other.size(1) != rank:
            raise checks.ToolError(f"{folder / WEIGHTS}: {name} has no partner of rank {rank}")
        pairs[name.removeprefix(PREFIX).replace(".lora_A.weight", ".weight")] = (tensor, other)
    if not pairs or len(tensors) != 2 * len(pairs):
        raise checks.ToolError(f"{folder / WEIGHTS} holds tensors other than pairs of lora_A and lora_B")
    return pairs


def merged(
    base: Path, scale: float, pairs: Mapping[str, tuple[Tensor, Tensor]], dtype: torch.dtype, change: MergedChange
) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight of ``base`` as ``dtype``, with its adapter, if any, merged."""
    for name, weight in read_weights(base):
        if name in pairs:
            weight = change.rounded(weight, merged_weight(weight, *pairs[name], scale), dtype)
        yield name, weight.to(dtype)


def merge(base: Path, adapter: Path, output: Path, *, dtype: str | None = None, force: bool = False) -> str:
    """Write the folder ``output`` and return a line that describes it, and one if rounding lost much of the change.

    Raises:
        SlimeError: the input is invalid; nothing was written.
    """
    read_config(base)
    names = files_of_weights(base)
    scale, pairs = read_adapter(adapter)
    pairs = {name_in(names, name): pair for name, pair in pairs.items()}
    unknown = sorted(set(pairs) - set(names))
    if unknown:
        raise checks.ToolError(f"{adapter} was made for another model: {base} has no {unknown[0]}")
    checks.check_output(output, [base, adapter], force=force)
    kind = checks.output_dtype(dtype, base)
    change = MergedChange()
    weights = checks.progress(merged(base, scale, pairs, kind, change), len(names), "merging")
    export_hf(weights, base, output, dtype=kind)
    lost = change.warning(kind)
    return "\n".join(
        [
            f"{output}: {len(names)} weights, {len(pairs)} of them with the adapter merged (scale {scale:g})",
            *([f"warning: {lost}"] if lost else []),
        ]
    )
