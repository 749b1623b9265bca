"""Folders of models and checkpoints: small, or only what is read before the weights."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

ORIGIN = "/models/first"

QWEN3_4B = {
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5000000,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
}


def config_only(folder: Path, **changes: object) -> Path:
    """Write ``config.json`` of Qwen3-4B (2507) with changes, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(QWEN3_4B | changes))
    return folder


def looks_whole(folder: Path, **changes: object) -> Path:
    """Write what a dry run looks for in a model, with empty weights and tokenizer, and return the folder."""
    config_only(folder, **changes)
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).write_bytes(b"")
    return folder


def published(root: Path, number: int) -> None:
    """Make ``root`` look like a checkpoint root whose newest checkpoint is the one after ``number`` rollouts."""
    from torch.distributed.checkpoint.metadata import Metadata

    folder = root / f"iter_{number:07d}"
    (folder / "state").mkdir(parents=True)
    (folder / "state" / ".metadata").write_bytes(pickle.dumps(Metadata({}, storage_data={})))
    (folder / "meta.json").write_text(json.dumps({"rollout_id": number - 1}))
    (root / "latest_checkpointed_iteration.txt").write_text(str(number))


def checkpoint(root: Path, number: int, state: dict[str, Any] | None = None, **meta: Any) -> Path:
    """Write a whole checkpoint of the tensors in ``state``, make it the newest of ``root``, and return its folder."""
    import torch
    from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

    from groundwork.checkpoint_names import LATEST

    folder = root / f"iter_{number:07d}"
    (folder / "state").mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(action="ignore"):
        dcp_save({**(state or {}), "steps": number}, checkpoint_id=str(folder / "state"), no_dist=True)
    torch.save({}, folder / "rng_0.pt")
    known = {"role": "policy", "rollout_id": number - 1, "world_size": 1, "lora": False, "hf_checkpoint": ORIGIN}
    (folder / "meta.json").write_text(json.dumps(known | meta))
    (root / "rollout").mkdir(exist_ok=True)
    torch.save({"epoch": 0}, root / "rollout" / f"global_dataset_state_dict_{number - 1}.pt")
    (root / LATEST).write_text(str(number))
    return folder
