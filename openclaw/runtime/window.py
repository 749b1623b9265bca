"""The process that reads and renders the window's views (`openclaw.window`), for the gateway.

Guarantees: those of `KeptProcess`, and that at most `MOST_LOOKS` looks are under way. Owned by the leading process of a gateway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.channel import Channel, ChannelLostError
from openclaw.gateway.errors import ApiError
from openclaw.gateway.window_views import BUSY, Asked, ChangeError, UnknownViewError
from openclaw.runtime.kept_process import KeptProcess

logger = logging.getLogger(__name__)

PROGRAM = "openclaw.window"
IDLE_SECONDS = 900.0
PATIENCE_SECONDS = 60.0
"""How long a look may take; the first one of a turn's story loads torch."""
TRIES = 2
MOST_LOOKS = 64
"""Looks under way. A further one is refused, so that who loads hundreds of pages makes nobody wait until the time is over."""


class WindowProcess:
    """The views of one server (`openclaw.gateway.window_views.Views`)."""

    def __init__(self, config: RuntimeConfig, idle_seconds: float = IDLE_SECONDS) -> None:
        """Prepare to show the ledger and run of ``config``; nothing is started."""
        places = [config.ledger or "", config.run_dir or ""]
        self.process = KeptProcess(PROGRAM, places, name="window", idle_seconds=idle_seconds)

    async def show(self, asked: Asked) -> bytes:
        """Return what a look shows.

        Raises:
            ApiError: 503 if the process does not answer, or `MOST_LOOKS` are under way; 500 if it fails.
        """
        return await self._ask(lambda channel: channel.ask("show", asked))

    async def roll_back(self, version: str) -> None:
        """Let the run go back to a version of the weights that all share."""
        await self._ask(lambda channel: channel.ask("roll_back", version))

    async def accept(self) -> None:
        """Accept what the gate refused of the weights that all share."""
        await self._ask(lambda channel: channel.ask("accept"))

    async def revisions(self, open_pages: Sequence[Asked]) -> list[str | None]:
        """Return a text for each page that changes with what it shows; None where that is not known now.

        Raises:
            ApiError: as `show` does.
        """
        return await self._ask(lambda channel: channel.ask("revisions", open_pages))

    async def close(self) -> None:
        """End the process."""
        await self.process.close()

    async def _ask(self, question: Callable[[Channel], Awaitable[Any]]) -> Any:
        if self.process.uses >= MOST_LOOKS:
            raise ApiError(503, "too many pages are loaded at once; load this one again", code=BUSY)
        with self.process.used():
            return await self._asked(question)

    async def _asked(self, question: Callable[[Channel], Awaitable[Any]]) -> Any:
        for _ in range(TRIES):
            try:
                channel = await self.process.channel()
                async with asyncio.timeout(PATIENCE_SECONDS):
                    return await question(channel)
            except ChannelLostError:
                logger.warning("the window's process ended; its log is above")
            except TimeoutError:
                logger.error("the window's process gave no answer for %g s", PATIENCE_SECONDS)
                self.process.end()
                break
            except (ApiError, UnknownViewError, ChangeError):
                raise
            except Exception as error:  # the process has logged it
                raise ApiError(500, "this page cannot be made; read why in the log of the server") from error
        raise ApiError(
            503,
            "the window cannot be shown now; load the page again, or read why in the log of the server",
            code="window_away",
        )
