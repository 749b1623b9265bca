"""Detects the end of an engine outage, so that turns need not wait out their back-off.

Guarantees: probes run only after a failure, every `PROBE_SECONDS`, for one token, until all engines answer. An engine
that answers the probe but fails other requests was not away: its turns keep their back-off. Stateless.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

logger = logging.getLogger(__name__)

PROBE_SECONDS = 1.0


class Probed(Protocol):
    """An engine with a probe, such as `openclaw.judge.client.EngineHttp`."""

    async def answers(self) -> bool: ...


async def watch_outages(
    engines: Sequence[Probed],
    failed: asyncio.Event,
    came_back: Callable[[], Awaitable[None]],
    probe_seconds: float = PROBE_SECONDS,
) -> None:
    """Call ``came_back`` whenever all engines answer after an outage; run until cancelled.

    Args:
        engines: all engines that a turn may need.
        failed: set on a failed request, after its turn was postponed.
        came_back: makes postponed turns due; called once more if a request failed during the return.
        probe_seconds: pause between two probes.
    """
    while True:
        await failed.wait()
        failed.clear()
        if not await _were_away(engines, probe_seconds):
            continue
        logger.info("the engines answer again; postponed turns are due")
        await came_back()
        await asyncio.sleep(probe_seconds)
        if failed.is_set():
            failed.clear()
            await came_back()


async def _were_away(engines: Sequence[Probed], probe_seconds: float) -> bool:
    """Wait until all engines answer; return whether any did not at first."""
    away = False
    while not all(await asyncio.gather(*(engine.answers() for engine in engines))):
        away = True
        await asyncio.sleep(probe_seconds)
    return away
