"""Convert an FSDP run's checkpoint to a Hugging Face checkpoint, with a LoRA adapter merged.

``--save-hf`` of a run writes the same folder with every checkpoint.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from slime.checkpoints.checkpoint_folder import export_hf, read_meta
from slime.conversion import checks, merge_lora
from slime.utils.hf_checkpoint import (
    files_of_weights,
    is_tied_head,
    language_model,
    name_in,
    read_config,
    weight_shapes,
)

PREFIX = "model.hf."
"""Prefix of the policy's weights in the state: key of the state dict, then attribute of the trainer's model."""
GROUP_BYTES = 2 * 2**30


def state_of(folder: Path) -> tuple[Path, bool]:
    """Return the checkpoint in ``folder``, and whether it holds LoRA adapters.

    Raises:
        ToolError: the folder holds no checkpoint of this back end.
    """
    checkpoint = checks.checkpoint_in(folder)
    if not (checkpoint / "state" / ".metadata").is_file():
        raise checks.ToolError(f"{checkpoint} has no state of an FSDP run (state/.metadata)")
    meta = read_meta(checkpoint)
    checks.check_policy(checkpoint, meta)
    return checkpoint, bool(meta["lora"])


def stored(state: Path) -> dict[str, TensorStorageMetadata]:
    """Return the policy's weights in a state: ``{name: size and dtype}``."""
    entries = FileSystemReader(state).read_metadata().state_dict_metadata
    return {
        key.removeprefix(PREFIX): entry
        for key, entry in entries.items()
        if key.startswith(PREFIX) and isinstance(entry, TensorStorageMetadata)
    }


def read_state(state: Path, entries: dict[str, TensorStorageMetadata]) -> Iterator[tuple[str, Tensor]]:
    """Yield ``(name, tensor)`` of ``entries``, read in groups of at most ``GROUP_BYTES``."""
    names = list(entries)
    while names:
        group: dict[str, Tensor] = {}
        while names and (not group or sum(tensor.nbytes for tensor in group.values()) < GROUP_BYTES):
            name = names.pop(0)
            group[PREFIX + name] = torch.empty(entries[name].size, dtype=entries[name].properties.dtype)
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # warns that only one process reads it
            load(group, storage_reader=FileSystemReader(state), no_dist=True)
        yield from ((key.removeprefix(PREFIX), tensor) for key, tensor in group.items())


def convert(source: Path, origin: Path, output: Path, *, dtype: str | None = None, force: bool = False) -> str:
    """Write the folder ``output`` and return a line that describes it.

    Args:
        source: a run's checkpoints folder, or one checkpoint in it.
        origin: the Hugging Face checkpoint that the run started from; gives configuration, tokenizer and LoRA's base
            weights.
        output: folder to write.
        dtype: type of the weights; default: as in ``origin``.
        force: replace an existing ``output``.

    Raises:
        SlimeError: the input is invalid; nothing was written.
    """
    folder, with_lora = state_of(source)
    if with_lora:
        return merge_lora.merge(origin, folder / "adapter", output, dtype=dtype, force=force)
    config, names = read_config(origin), files_of_weights(origin)
    entries = {name: entry for name, entry in stored(folder / "state").items() if not is_tied_head(config, name)}
    results = {name_in(names, name): tuple(entry.size) for name, entry in entries.items()}
    shapes = language_model(origin)
    if not results.keys() <= shapes.keys():  # a vision tower was trained too, or the model is another one
        shapes = weight_shapes(origin)
    expected = {name: shape for name, shape in shapes.items() if not is_tied_head(config, name)}
    odd = sorted(name for name in expected.keys() | results.keys() if expected.get(name) != results.get(name))
    if odd:
        shapes = f"{results.get(odd[0], 'nothing')} there, {expected.get(odd[0], 'nothing')} in {origin}"
        raise checks.ToolError(f"{folder} is not from a run that started from {origin}: {odd[0]} is {shapes}")
    checks.check_output(output, [origin, folder], force=force)
    kind = checks.output_dtype(dtype, origin)
    weights = ((name, tensor.to(kind)) for name, tensor in read_state(folder / "state", entries))
    export_hf(checks.progress(weights, len(entries), "converting"), origin, output, dtype=kind)
    return f"{output}: {len(entries)} weights of {folder}"
