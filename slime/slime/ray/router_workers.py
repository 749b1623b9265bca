"""Which engines of a role its router sends requests to.

Guarantees: a dead engine, or one that holds its requests until it has the trainer's weights, gets none while another
engine answers. If none answers, the holding engines get the requests and hold them, because a router without engines
would refuse requests. A failed call to the router is logged and retried at the next check.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence

import httpx

logger = logging.getLogger(__name__)

_CALL_SECONDS = 5.0
_JOIN_SECONDS = 10.0
_POLL_SECONDS = 0.02


class RouterWorkers:
    """Owns the router's list of engines, named by index. Thread-safe."""

    def __init__(self, router: str, engines: Sequence[str]) -> None:
        """``router`` and ``engines`` are URLs; initially the router has all engines."""
        self._engines = list(engines)
        self._out: set[int] = set()
        self._due: set[int] = set()
        self._lock = threading.Lock()
        self._client = httpx.Client(base_url=router, timeout=_CALL_SECONDS, trust_env=False)

    def lost(self, dead: Collection[int]) -> None:
        """Stop sending requests to ``dead`` engines, unless no other engine would be left."""
        with self._lock:
            self._due -= set(dead)
            others = set(range(len(self._engines))) - self._out - set(dead)
            if others:
                self._remove(set(dead) - self._out)
            else:
                self._due |= self._out - set(dead)
            self._add_due()

    def apart(self, engine: int) -> bool:
        """Stop sending requests to an engine that answers; return False if the router still does, because no other engine answers."""
        self.lost([engine])
        with self._lock:
            return engine in self._out - self._due

    def answers(self, engines: Collection[int]) -> None:
        """Send requests again to ``engines``, which now have current weights."""
        with self._lock:
            self._due |= self._out & set(engines)
            self._add_due()

    def _remove(self, engines: set[int]) -> None:
        for index in engines:
            try:
                listed = self._listed()
                if self._engines[index] in listed:
                    self._client.delete(f"/workers/{listed[self._engines[index]]}").raise_for_status()
                self._out.add(index)
            except httpx.HTTPError as error:
                logger.warning("the router could not remove the dead engine %s: %r", self._engines[index], error)

    def _add_due(self) -> None:
        for index in sorted(self._due):
            try:
                self._add(self._engines[index])
            except (httpx.HTTPError, TimeoutError) as error:
                logger.warning("the router did not add %s; trying again: %r", self._engines[index], error)
                continue
            self._due.discard(index)
            self._out.discard(index)

    def _add(self, url: str) -> None:
        self._client.post("/workers", json={"url": url}).raise_for_status()
        deadline = time.monotonic() + _JOIN_SECONDS
        while url not in self._listed():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the engine is not in the router's list after {_JOIN_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)

    def _listed(self) -> dict[str, str]:
        """Return the id of each engine in the router, by URL."""
        workers = self._client.get("/workers").raise_for_status().json()["workers"]
        return {worker["url"]: worker["id"] for worker in workers}
