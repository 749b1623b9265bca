"""Which requests an engine was working on when it ended, and which of them may be sent again.

A request can be the cause of its engine's end. So each request under which an engine died is a suspect:

* It is sent once more. If that engine dies too before its first token, the request is refused.
* Suspects are sent one after the other, so that a bystander is not blamed twice for the request beside it.
* A request that got tokens from the engine that died is hardly the cause. It is sent again without waiting, but not after
  its third engine.

Guarantees: an engine's end is logged once, with the requests it had: their names, which the caller chooses without any
contents. Owns the count of deaths of each request and the turn of the suspects; used from one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from openclaw.exceptions import EngineDiedError

logger = logging.getLogger(__name__)

MOST_DEATHS_UNHEARD = 2
"""Engines that may die under a request without a token for it."""
MOST_DEATHS = 3
GATHER_SECONDS = 0.5
"""How long the log waits for the other requests of the same engine."""


@dataclass
class Suspicion:
    """The engines that died under one request: all, and those from which it got no token."""

    deaths: int = 0
    unheard: int = 0


class Deaths:
    """Judges the requests of engines that died."""

    def __init__(self, url: str, on_death: Callable[[str], None]) -> None:
        """Create the judge of ``url``; call ``on_death`` with ``resent`` or ``refused`` for each request."""
        self._url = url
        self._on_death = on_death
        self._one_suspect = asyncio.Lock()
        self._names: list[str] = []

    def note(self, name: str, suspicion: Suspicion, *, heard: bool) -> None:
        """Count a death under a request that got tokens from that engine (``heard``) or not.

        Raises:
            EngineDiedError: when the request must not be sent again.
        """
        suspicion.deaths += 1
        suspicion.unheard += not heard
        if not self._names:
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._log)
        self._names.append(name)
        refused = suspicion.unheard >= MOST_DEATHS_UNHEARD or suspicion.deaths >= MOST_DEATHS
        self._on_death("refused" if refused else "resent")
        if refused:
            raise EngineDiedError(f"the engine ended {suspicion.deaths} times while it worked on this request")

    @asynccontextmanager
    async def turn(self, suspicion: Suspicion) -> AsyncIterator[Callable[[], None]]:
        """Wait until no other suspect is with the engine; yields what to call at the first token."""
        if not suspicion.unheard:
            yield lambda: None
            return
        await self._one_suspect.acquire()
        held = True

        def heard() -> None:
            nonlocal held
            if held:
                held = False
                self._one_suspect.release()

        try:
            yield heard
        finally:
            heard()

    def _log(self) -> None:
        names, self._names = self._names, []
        logger.warning(
            "the engine at %s ended while it worked on %d requests: %s", self._url, len(names), ", ".join(names)
        )
