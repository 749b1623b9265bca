"""Where the tiny models lie: the one of the repository, and the cache of those that were built here.

Guarantees: the key covers the seed, the settings and every source that shapes corpus, tokenizer or weights, including
the judge prompts. The repository's model is used only while its key is that of the sources. A folder under its final
name is complete. Does not import torch, so launch scripts can use it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / ".cache" / "tiny"
SHIPPED = Path(__file__).resolve().parent / "shipped"
"""The model of seed 0, trained for longer than anybody would wait for a first reply."""
SOURCES = (
    *(
        f"openclaw-test/tiny_models/{name}"
        for name in (
            "words.py",
            "problems.py",
            "everyday.py",
            "replies.py",
            "phrases.py",
            "feedback.py",
            "hints.py",
            "wishes.py",
            "small_talk.py",
            "episodes.py",
            "tokenizer.py",
            "chat_template.jinja",
            "batches.py",
            "train.py",
        )
    ),
    "openclaw/judge/prompts.py",
    "openclaw/messages/text.py",
)


def cache_key(seed: int, repository: Path = REPOSITORY) -> str:
    """Return the key of a model trained with ``seed`` and the current sources (settings are in `train.py`)."""
    digest = hashlib.sha256(f"seed={seed}\n".encode())
    for name in SOURCES:
        digest.update(f"{name}\n".encode() + (repository / name).read_bytes())
    return digest.hexdigest()[:16]


def model_path(seed: int = 0) -> Path:
    """Return the folder of the model of ``seed``, built or not."""
    key = cache_key(seed)
    return SHIPPED if shipped_key() == key else CACHE / key


def shipped_key() -> str | None:
    """Return the key of the repository's model, or None if there is none."""
    try:
        return json.loads((SHIPPED / "metrics.json").read_text())["key"]
    except FileNotFoundError:
        return None


def is_built(path: Path) -> bool:
    """Return whether a complete model lies at ``path``."""
    return (path / "metrics.json").is_file()
