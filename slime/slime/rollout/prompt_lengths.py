"""Prompts that are too long for the context are left out when a data set is loaded, with a count in the log."""

from __future__ import annotations

import logging
from typing import Any

from slime.args import Arguments
from slime.rollout.multimodal_prompts import expanded_tokens
from slime.utils.types import Sample

logger = logging.getLogger(__name__)


def prompt_tokens(tokenizer: Any, prompt: Any) -> int:
    """Return how many tokens a rendered prompt or a list of messages has."""
    if isinstance(prompt, str):
        return len(tokenizer.encode(prompt, add_special_tokens=False))
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    return len(tokenizer.encode(text, add_special_tokens=False))


def drop_long_prompts(args: Arguments, tokenizer: Any, samples: list[Sample], longest: int) -> list[Sample]:
    """Return the samples whose prompt, pictures included, has at most ``longest`` tokens."""
    kept = [
        sample
        for sample in samples
        if prompt_tokens(tokenizer, sample.prompt) + expanded_tokens(args, sample) <= longest
    ]
    if len(kept) < len(samples):
        logger.warning(
            "%d of %d prompts have over %d tokens: left out", len(samples) - len(kept), len(samples), longest
        )
    return kept
