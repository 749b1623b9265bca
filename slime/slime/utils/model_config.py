"""What ``config.json`` of a Hugging Face folder says of a model. Imports no torch, so the command line reads it at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slime.exceptions import CheckpointError


def read_config(folder: Path) -> dict[str, Any]:
    """Return ``config.json``.

    Raises:
        CheckpointError: when the folder is no checkpoint of a model.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{folder} is no Hugging Face checkpoint: it has no config.json")
    return json.loads(file.read_text())


def text_config(config: dict) -> dict:
    """Return what ``config.json`` says of the language model; tying is often said outside of it only."""
    inner = config.get("text_config")
    return {"tie_word_embeddings": config.get("tie_word_embeddings", False), **inner} if inner else config


def number_of_experts(config: dict) -> int | None:
    """Experts per layer, under the name of the published files or the one that transformers writes."""
    return config.get("num_experts") or config.get("num_local_experts")
