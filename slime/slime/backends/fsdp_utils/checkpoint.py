"""Resumable checkpoints: ``<save>/iter_<n>/`` after n rollouts, and ``latest_checkpointed_iteration.txt`` that names one.

Layout: ``state/`` (torch DCP: weights and optimizer by parameter name, so any number of ranks can load it),
``rng_<rank>.pt``, ``meta.json`` (rollout_id, weight_version, steps, world_size, ...), ``adapter/`` for LoRA.

Guarantees: a folder appears by rename when it is whole, and the latest file is replaced after that; a crash at any moment
leaves the previous checkpoint valid. A LoRA run stores its adapters only. Rollout r is stored as n = r + 1, which is also
the rollout to start with on resume.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from slime.backends.fsdp_utils.export import fresh_folder, replace_folder
from slime.exceptions import CheckpointError

logger = logging.getLogger(__name__)

LATEST = "latest_checkpointed_iteration.txt"


def folder_of(root: Path, iteration: int) -> Path:
    """The folder of a checkpoint after ``iteration`` rollouts."""
    return root / f"iter_{iteration:07d}"


def find(path: Path) -> Path | None:
    """Return the checkpoint folder that ``path`` means (a root, or the folder itself), None when there is none."""
    if (path / "meta.json").exists():
        return path
    latest = path / LATEST
    if not latest.exists():
        return None
    folder = folder_of(path, int(latest.read_text().strip()))
    if not (folder / "meta.json").exists():
        raise FileNotFoundError(f"{latest} names {folder.name}, which is not there: write the number of one that is")
    return folder


def rng_state() -> dict[str, Any]:
    """The random state of this process: Python, NumPy, torch, CUDA."""
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


def save(
    root: Path, iteration: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, meta: dict[str, Any]
) -> Path:
    """Write a checkpoint and return its folder, not yet named by the latest file; collective."""
    final = folder_of(root, iteration)
    temporary = final.with_name(final.name + ".tmp")
    if dist.get_rank() == 0:
        fresh_folder(final)
    dist.barrier()
    weights, moments = get_state_dict(model, optimizer, options=StateDictOptions(ignore_frozen_params=True))
    dcp_save({"model": weights, "optimizer": moments}, checkpoint_id=str(temporary / "state"))
    torch.save(rng_state(), temporary / f"rng_{dist.get_rank()}.pt")
    dist.barrier()
    if dist.get_rank() == 0:
        (temporary / "meta.json").write_text(json.dumps(meta, indent=2))
        replace_folder(temporary, final)
    dist.barrier()
    return final


def publish(root: Path, iteration: int, keep: int) -> None:
    """Name ``iteration`` as the latest one, then delete all but the ``keep`` newest (0 keeps all). Rank 0 only."""
    temporary = root / (LATEST + ".tmp")
    with temporary.open("w") as file:
        file.write(str(iteration))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, root / LATEST)
    if keep <= 0:
        return
    folders = sorted(
        path for path in root.glob("iter_*") if path.is_dir() and path.name.removeprefix("iter_").isdigit()
    )
    for folder in folders[: max(0, len(folders) - keep)]:
        if folder != folder_of(root, iteration):
            shutil.rmtree(folder)


def load(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, wants_lora: bool) -> dict[str, Any]:
    """Load ``folder`` into ``model`` and ``optimizer`` and return its meta; collective, for any number of ranks.

    The random state is restored when the number of ranks is the saved one.
    """
    meta = json.loads((folder / "meta.json").read_text())
    if meta["lora"] != wants_lora:
        kind = "LoRA adapters" if meta["lora"] else "full weights"
        raise CheckpointError(f"{folder} holds {kind}: {'add' if meta['lora'] else 'remove'} --use-lora")
    options = StateDictOptions(ignore_frozen_params=True, strict=not meta["lora"])
    weights, moments = get_state_dict(model, optimizer, options=options)
    dcp_load({"model": weights, "optimizer": moments}, checkpoint_id=str(folder / "state"))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments, options=options)
    random_file = folder / f"rng_{dist.get_rank()}.pt"
    if meta["world_size"] == dist.get_world_size():
        set_rng_state(torch.load(random_file, weights_only=False))
    else:
        logger.warning(
            "%s was written by %d ranks and is loaded by %d: random states start anew",
            folder, meta["world_size"], dist.get_world_size(),
        )  # fmt: skip
    return meta
