"""Notices that an engine which was away answers again, so that turns do not wait out the pause of their last failure.

Guarantees: engines are asked only after a failure, every `PROBE_SECONDS` and for one token, until all of them answer. An
engine that answers the probe and fails everything else was not away: its turns keep their growing pause. Owns no state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

logger = logging.getLogger(__name__)

PROBE_SECONDS = 1.0


class Probed(Protocol):
    """An engine that can be asked whether it answers; `openclaw.judge.client.EngineHttp` is one."""

    async def answers(self) -> bool: ...


async def watch_outages(
    engines: Sequence[Probed],
    failed: asyncio.Event,
    came_back: Callable[[], Awaitable[None]],
    probe_seconds: float = PROBE_SECONDS,
) -> None:
    """Call ``came_back`` each time that all engines answer after at least one did not; runs until it is cancelled.

    Args:
        engines: all that a turn may need.
        failed: set by whoever missed an engine, after it noted which turn has to wait.
        came_back: makes what waits due; called once more when something failed in the moment of the return.
        probe_seconds: pause between two looks.
    """
    while True:
        await failed.wait()
        failed.clear()
        if not await _were_away(engines, probe_seconds):
            continue
        logger.info("the engines answer again; turns that waited for them are due")
        await came_back()
        await asyncio.sleep(probe_seconds)
        if failed.is_set():
            failed.clear()
            await came_back()


async def _were_away(engines: Sequence[Probed], probe_seconds: float) -> bool:
    """Return once all engines answer: whether one did not at first."""
    away = False
    while not all(await asyncio.gather(*(engine.answers() for engine in engines))):
        away = True
        await asyncio.sleep(probe_seconds)
    return away
