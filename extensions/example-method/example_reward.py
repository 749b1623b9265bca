"""Reward of the example: the share of lower-case letters, which even a tiny model can learn."""

from __future__ import annotations


async def reward_func(args, sample, **kwargs):
    """Return ``{"score": share of small letters, "acc": whether the label is in the reply}``; a list for a list."""
    if isinstance(sample, list):
        return [await reward_func(args, one, **kwargs) for one in sample]
    letters = sum(letter.islower() for letter in sample.response)
    return {
        "score": letters / max(1, len(sample.response)),
        "acc": sample.label is not None and sample.label in sample.response,
    }
