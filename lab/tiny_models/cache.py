"""Where the tiny models lie: the one of the repository, and the cache of those that were built here.

Guarantees: the key covers what the model is trained on, not the files that say so: the seed, the settings, the chat
template, and the first conversations of each kind, which contain the judge prompts. The repository's model is used only
while its key matches. A folder under its final name is complete. Does not import torch, so launch scripts can use it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.tiny_models.episodes import echo_episode, judge_episode, policy_episode

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / ".cache" / "tiny"
SHIPPED = Path(__file__).resolve().parent / "shipped"
"""The model of seed 0, trained for longer than anybody would wait for a first reply."""
TEMPLATE = Path(__file__).with_name("chat_template.jinja")
KEYED = 300
"""Conversations of each kind in the key; they use most phrases of the corpus."""


@dataclass(frozen=True)
class Settings:
    """Shape and schedule; part of the key."""

    vocabulary: int = 1280
    tokenizer_conversations: int = 6000
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 384
    steps: int = 4500
    batch_tokens: int = 3072
    learning_rate: float = 5e-3
    extra_rounds: int = 3
    extra_steps: int = 250
    extra_learning_rate: float = 1e-3


@functools.cache
def cache_key(seed: int) -> str:
    """Return the key of a model that is trained with ``seed`` on what the sources here make."""
    digest = hashlib.sha256(f"seed={seed}\n{asdict(Settings())}\n{TEMPLATE.read_text()}".encode())
    rng = random.Random(0)
    for draw in (policy_episode, judge_episode, echo_episode):
        for _ in range(KEYED):
            digest.update(repr(draw(rng)).encode())
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
