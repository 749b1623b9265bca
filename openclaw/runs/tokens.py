"""The tokens of a reply as text, each by itself, from its stored ids. Nothing is tokenised."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from groundwork.processors import load_tokenizer
from slime.args import Arguments


def run_tokenizer(args: Arguments) -> Any | None:
    """Return the tokenizer of the run's checkpoint if its folder is on this machine, otherwise None."""
    folder = args.hf_checkpoint
    if not folder or not Path(folder).is_dir():
        return None
    try:
        return load_tokenizer(folder)
    except (OSError, ValueError):
        return None


def token_texts(tokenizer: Any | None, ids: Sequence[int]) -> list[str]:
    """Return the text of each token, or its id in angle brackets without a tokenizer."""
    if tokenizer is None:
        return [f"<{number}>" for number in ids]
    return [tokenizer.decode([number], skip_special_tokens=False) for number in ids]
