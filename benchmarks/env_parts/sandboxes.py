"""Start of a sandbox, and a call in it, beside a plain subprocess, which is the limit."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from benchmarks.env_parts.environments import MINIMAL
from benchmarks.env_parts.statistics import milliseconds


async def plain_call() -> float:
    """Return the seconds of a plain subprocess."""
    begun = time.perf_counter()
    process = await asyncio.create_subprocess_exec("true", env=MINIMAL)
    await process.wait()
    return time.perf_counter() - begun


async def sandbox_figures(folder: Path, count: int) -> dict[str, Any]:
    """Start ``count`` sandboxes one after the other, with ``count`` calls in the last; return the times."""
    plain = [await plain_call() for _ in range(count)]
    return {"plain_ms": milliseconds(plain)}
