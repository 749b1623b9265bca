"""Checkpoint state of the FSDP back end: torch DCP, with weights and optimizer by parameter name.

Guarantee: any number of ranks can load it. A LoRA run stores only its adapters; parameters frozen by name are stored
too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from slime.backends.fsdp_utils.optimizer import start_moments
from slime.checkpoints.checkpoint_folder import LATEST, find, folder_of, publish, read_meta, restore_rng, write
from slime.exceptions import CheckpointError

__all__ = ["LATEST", "find", "folder_of", "load", "publish", "save"]


def save(
    root: Path, iteration: int, model: torch.nn.Module, optimizer: torch.optim.AdamW, meta: dict[str, Any]
) -> Path:
    """Write a checkpoint, not yet marked as the latest, and return its folder; collective."""
    start_moments(optimizer)

    def write_state(path: Path) -> None:
        weights, moments = get_state_dict(model, optimizer, options=StateDictOptions(ignore_frozen_params=meta["lora"]))
        dcp_save({"model": weights, "optimizer": moments}, checkpoint_id=str(path))

    return write(root, iteration, meta, write_state)


def load(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, wants_lora: bool) -> dict[str, Any]:
    """Load ``folder`` into ``model`` and ``optimizer`` and return its metadata; collective, on any number of ranks."""
    meta = read_meta(folder)
    if meta.get("backend", "fsdp") != "fsdp":
        raise CheckpointError(f"{folder} was written by {meta['backend']}: add --train-backend {meta['backend']}")
    if meta["lora"] != wants_lora:
        kind = "LoRA adapters" if meta["lora"] else "full weights"
        raise CheckpointError(f"{folder} holds {kind}: {'add' if meta['lora'] else 'remove'} --use-lora")
    options = StateDictOptions(ignore_frozen_params=meta["lora"], strict=not meta["lora"])
    weights, moments = get_state_dict(model, optimizer, options=options)
    dcp_load({"model": weights, "optimizer": moments}, checkpoint_id=str(folder / "state"))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments, options=options)
    restore_rng(folder, meta)
    return meta
