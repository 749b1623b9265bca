"""Read ``config.json`` of a Hugging Face folder. Imports no torch, so that the command line stays fast."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slime.exceptions import CheckpointError, ConfigurationError


def read_config(folder: Path) -> dict[str, Any]:
    """Return ``config.json``.

    Raises:
        CheckpointError: the folder is not a model's checkpoint.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{folder} is not a Hugging Face checkpoint: it has no config.json")
    return json.loads(file.read_text())


@contextmanager
def without_own_code(folder: str | Path) -> Iterator[dict[str, bool]]:
    """Yield the keyword argument with which transformers loads ``folder`` without running Python code that it brings.

    Raises:
        ConfigurationError: the folder cannot be loaded without such code.
    """
    try:
        yield {"trust_remote_code": False}
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ConfigurationError(
            f"{folder} needs Python code of its own (auto_map in its JSON files), which is never run; use a model that the "
            "installed transformers and SGLang know"
        ) from error


def text_config(config: dict) -> dict:
    """Return the language model's part of ``config.json``; weight tying may be set only at the top level."""
    inner = config.get("text_config")
    return {"tie_word_embeddings": config.get("tie_word_embeddings", False), **inner} if inner else config


def number_of_experts(config: dict) -> int | None:
    """Return the experts per layer, under the published name or the one that transformers writes."""
    return config.get("num_experts") or config.get("num_local_experts")
