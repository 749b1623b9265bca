"""Read ``config.json`` of a Hugging Face folder. Imports no torch, so that the command line stays fast."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slime.exceptions import CheckpointError

CONTEXT_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
"""Keys for the longest context; the first of them counts, as in SGLang."""
WITHIN_STATED = ("llama3", "yarn", "longrope")
"""Rotary scalings that extend an earlier context to the stated one; any other multiplies the stated one by its factor."""


def read_config(folder: Path) -> dict[str, Any]:
    """Return ``config.json``.

    Raises:
        CheckpointError: the folder is not a model's checkpoint.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{folder} is not a Hugging Face checkpoint: it has no config.json")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file} cannot be read as JSON ({type(error).__name__}); fetch the model again"
        ) from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} holds no JSON object; fetch the model again")
    return config


def config_or_none(folder: str | None) -> dict[str, Any] | None:
    """Return ``config.json`` of a folder, or None if it has none that can be read; a start names such a folder."""
    try:
        return read_config(Path(folder)) if folder else None
    except CheckpointError:
        return None


def text_config(config: dict) -> dict:
    """Return the language model's part of ``config.json``; weight tying may be set only at the top level."""
    inner = config.get("text_config")
    return {"tie_word_embeddings": config.get("tie_word_embeddings", False), **inner} if inner else config


def number_of_experts(config: dict) -> int | None:
    """Return the experts per layer, under the published name or the one that transformers writes."""
    return config.get("num_experts") or config.get("num_local_experts")


def context_limit(config: dict | None, override: dict | None = None) -> int | None:
    """Return the most tokens of a context that SGLang serves without being forced; None if ``config.json`` states none.

    Args:
        config: ``config.json``; None if it is not known.
        override: values that replace the model's own, as ``--json-model-override-args`` of SGLang has them.
    """
    text = {**text_config(config or {}), **(override or {})}
    stated = next((text[key] for key in CONTEXT_KEYS if text.get(key) is not None), None)
    if stated is None:
        return None
    rotary = text.get("rope_scaling") or text.get("rope_parameters") or {}
    kind = rotary.get("rope_type") or rotary.get("type")
    within = kind in WITHIN_STATED or "original_max_position_embeddings" in rotary
    return int(stated * (1 if within else rotary.get("factor", 1)))
