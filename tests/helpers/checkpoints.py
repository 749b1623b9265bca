"""Checkpoint folders that hold only a config: enough for everything that happens before weights are read."""

from __future__ import annotations

import json
from pathlib import Path

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
    folder = root / f"iter_{number:07d}"
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"rollout_id": number - 1}))
    (root / "latest_checkpointed_iteration.txt").write_text(str(number))
