"""A reward function for runs on random models."""

from __future__ import annotations

from typing import Any


async def prefer_even_ids(args: Any, sample: Any, **kwargs: Any) -> Any:
    """The share of even ids among the sampled tokens; a list for a list of samples."""
    if isinstance(sample, list):
        return [await prefer_even_ids(args, member) for member in sample]
    ids = sample.tokens[-sample.response_length :]
    return sum(token % 2 == 0 for token in ids) / max(1, len(ids))
