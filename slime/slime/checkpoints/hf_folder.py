"""Write a Hugging Face checkpoint folder from a stream of tensors.

Guarantee: the folder appears complete, by rename, or not at all.
"""

from __future__ import annotations

import collections
import itertools
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from slime.checkpoints.all_ranks import on_all_ranks
from slime.checkpoints.checkpoint_folder import fresh_folder, replace_folder
from slime.utils.hf_checkpoint import beside_the_language_model, files_of_weights, name_in, read_config

logger = logging.getLogger(__name__)

_SHARD_BYTES = 4 * 2**30
_COPIED = (".json", ".txt", ".jinja", ".model", ".py")


def export_hf(weights: Iterable[tuple[str, Tensor]], source: Path, path: Path, *, dtype: torch.dtype) -> None:
    """Write the checkpoint folder ``path`` on rank 0, as :func:`write_hf` does. Collective.

    Raises:
        CheckpointError: rank 0 cannot write. Raised on the other ranks, after all ranks have finished gathering.
    """
    gathered = False

    def to_the_end() -> Iterator[tuple[str, Tensor]]:
        nonlocal gathered
        yield from weights
        gathered = True

    # Unlike a generator, a chain stays open when its reader fails, so the rest can be gathered below.
    stream = itertools.chain(to_the_end())
    failure: Exception | None = None
    if not dist.is_initialized() or dist.get_rank() == 0:
        try:
            write_hf(stream, source, path, dtype=dtype)
        except Exception as error:
            logger.exception("%s could not be written", path)
            failure = error
    collections.deque(stream, maxlen=0)

    def report() -> None:
        if failure is not None:
            raise failure

    if gathered:
        on_all_ranks(report)
    else:  # gathering itself failed, so the other ranks will not reach `on_all_ranks`
        report()


def write_hf(weights: Iterable[tuple[str, Tensor]], source: Path, path: Path, *, dtype: torch.dtype) -> None:
    """Write ``weights`` (Hugging Face names, tensors of ``dtype``) to the checkpoint folder ``path``.

    Configuration and tokenizer files come from the folder ``source``. So do weights outside the language model, if
    ``weights`` lacks them.
    """
    temporary = fresh_folder(path)
    shards: list[dict[str, Tensor]] = [{}]
    index, size, total = {}, 0, 0
    for name, tensor in _whole_model(weights, source, dtype):
        if size and size + tensor.nbytes > _SHARD_BYTES:
            save_file(shards[-1], temporary / f"part-{len(shards)}.safetensors", metadata={"format": "pt"})
            shards[-1] = {}
            shards.append({})
            size = 0
        shards[-1][name] = tensor.cpu().contiguous()
        index[name] = len(shards)
        size += tensor.nbytes
        total += tensor.nbytes
    save_file(shards[-1], temporary / f"part-{len(shards)}.safetensors", metadata={"format": "pt"})
    _name_shards(temporary, index, len(shards), total)
    _copy_side_files(source, temporary, dtype)
    replace_folder(temporary, path)


def _whole_model(
    weights: Iterable[tuple[str, Tensor]], source: Path, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """Yield ``weights`` under the names in ``source``, then missing tensors outside the language model."""
    if not read_config(source).get("text_config"):
        yield from weights
        return
    names, given = files_of_weights(source), set()
    for name, tensor in weights:
        given.add(name_in(names, name))
        yield name_in(names, name), tensor
    yield from ((name, tensor.to(dtype)) for name, tensor in beside_the_language_model(source) if name not in given)


def _name_shards(folder: Path, index: dict[str, int], count: int, total: int) -> None:
    if count == 1:
        os.replace(folder / "part-1.safetensors", folder / "model.safetensors")
        return
    names = {part: f"model-{part:05d}-of-{count:05d}.safetensors" for part in range(1, count + 1)}
    for part, name in names.items():
        os.replace(folder / f"part-{part}.safetensors", folder / name)
    content = {"metadata": {"total_size": total}, "weight_map": {key: names[part] for key, part in index.items()}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content, indent=2))


def _copy_side_files(source: Path, folder: Path, dtype: torch.dtype) -> None:
    for file in source.iterdir():
        if file.suffix in _COPIED and not file.name.endswith(".index.json"):
            shutil.copy2(file, folder / file.name)
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=2))
