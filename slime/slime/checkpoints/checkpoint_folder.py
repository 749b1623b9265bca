"""Write folders that appear whole, by rename, or not at all: resumable checkpoints, and Hugging Face folders.

After n rollouts the folder is ``<save>/iter_<n>/``; ``latest_checkpointed_iteration.txt`` names the latest one. Layout:

* ``state/`` belongs to the back end; any number of ranks can load it.
* ``rng_<rank>.pt`` is the random state of a rank.
* ``meta.json`` holds rollout_id, weight_version, steps, world_size, ...

Guarantees: the latest file is replaced only once the folder is complete. A crash at any moment leaves the
previous checkpoint valid. Rollout r is stored as n = r + 1, which is the first rollout after a resume.
"""

from __future__ import annotations

import collections
import itertools
import json
import logging
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from groundwork.checkpoint_names import LATEST
from slime.checkpoints.all_ranks import on_all_ranks, on_rank_zero
from slime.utils.data_files import load_data, save_data
from slime.utils.hf_checkpoint import beside_the_language_model, files_of_weights, name_in, read_config

logger = logging.getLogger(__name__)


def replace_folder(temporary: Path, final: Path) -> None:
    """Rename ``temporary`` to ``final``; keep an existing ``final`` until the new one is in place."""
    old = _replaced(final)
    if old.exists():
        shutil.rmtree(old)
    if final.exists():
        os.replace(final, old)
    os.replace(temporary, final)
    if old.exists():
        shutil.rmtree(old)


def _replaced(final: Path) -> Path:
    """Return where :func:`replace_folder` keeps the earlier folder until the new one is in place."""
    return final.with_name(final.name + ".old")


def unfinished(final: Path) -> Path:
    """Return the temporary path that is renamed to ``final`` once the folder is complete."""
    return final.with_name(final.name + ".tmp")


def fresh_folder(final: Path) -> Path:
    """Return an empty folder next to ``final`` to write into."""
    temporary = unfinished(final)
    if temporary.exists():
        shutil.rmtree(temporary)
    temporary.mkdir(parents=True)
    return temporary


def folder_of(root: Path, iteration: int) -> Path:
    """Return the folder of the checkpoint after ``iteration`` rollouts."""
    return root / f"iter_{iteration:07d}"


def find(path: Path) -> Path | None:
    """Return the checkpoint folder of ``path`` (a root, or the folder itself); None if there is none.

    Raises:
        FileNotFoundError: the latest file names a checkpoint that does not exist.
    """
    if (path / "meta.json").exists():
        return path
    latest = path / LATEST
    if not latest.exists():
        return None
    folder = folder_of(path, int(latest.read_text().strip()))
    if not (folder / "meta.json").exists() and (_replaced(folder) / "meta.json").exists():
        return _replaced(folder)  # a crash between the two renames of `replace_folder`
    if not (folder / "meta.json").exists():
        raise FileNotFoundError(
            f"{latest} names {folder.name}, which does not exist; write the number of one that does"
        )
    return folder


def rng_state() -> dict[str, Any]:
    """Return this process's random state: Python, NumPy, torch and CUDA."""
    state = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def write(root: Path, iteration: int, meta: dict[str, Any], write_state: Callable[[Path], None]) -> Path:
    """Write a checkpoint and return its folder. Collective.

    :func:`publish` then makes it the latest one. ``write_state`` fills the folder ``state`` and runs on every rank. An
    error on one rank fails all ranks.
    """
    final = folder_of(root, iteration)
    temporary = unfinished(final)

    def write_random_state() -> None:
        save_data(rng_state(), temporary / f"rng_{dist.get_rank()}.pt")

    def finish() -> None:
        (temporary / "meta.json").write_text(json.dumps(meta, indent=2))
        replace_folder(temporary, final)

    on_rank_zero(lambda: (fresh_folder(final) / "state").mkdir())
    write_state(temporary / "state")
    on_all_ranks(write_random_state)
    on_rank_zero(finish)
    return final


def publish(root: Path, iteration: int, old: Iterable[Path]) -> None:
    """Make ``iteration`` the latest checkpoint, then delete the ``old`` ones. Rank 0 only."""
    temporary = root / (LATEST + ".tmp")
    with temporary.open("w") as file:
        file.write(str(iteration))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, root / LATEST)
    for folder in old:
        shutil.rmtree(folder)


def read_meta(folder: Path) -> dict[str, Any]:
    """Return the contents of a checkpoint's ``meta.json``."""
    return json.loads((folder / "meta.json").read_text())


def restore_rng(folder: Path, meta: dict[str, Any]) -> None:
    """Restore this rank's random state if the number of ranks has not changed."""
    if meta["world_size"] == dist.get_world_size():
        set_rng_state(load_data(folder / f"rng_{dist.get_rank()}.pt"))
        return
    logger.warning(
        "%s was written by %d ranks and is loaded by %d; random states are not restored",
        folder, meta["world_size"], dist.get_world_size(),
    )  # fmt: skip


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
