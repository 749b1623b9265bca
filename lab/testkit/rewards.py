"""A reward function for runs on random models."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any


async def prefer_even_ids(args: Any, sample: Any, **kwargs: Any) -> Any:
    """The share of even ids among the sampled tokens; a list for a list of samples."""
    if isinstance(sample, list):
        return [await prefer_even_ids(args, member) for member in sample]
    ids = sample.tokens[-sample.response_length :]
    return sum(token % 2 == 0 for token in ids) / max(1, len(ids))


async def prefer_even_ids_when_free(args: Any, sample: Any, **kwargs: Any) -> Any:
    """As `prefer_even_ids`, but not while the file ``hold`` is in the run's folder; ``held`` says that it waits."""
    folder = Path(args.run_dir)
    while (folder / "hold").exists():
        (folder / "held").touch()
        await asyncio.sleep(0.05)
    return await prefer_even_ids(args, sample)
