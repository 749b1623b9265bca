"""Which engines of a role its router sends requests to: those that answer.

Guarantees: an engine that is dead, or holds its requests because it has yet to get the trainer's weights, gets none as long as another
one answers. Where none does, those that hold get them and hold them: a router without engines would refuse. What the router does
not do is logged, and tried again at the next look.
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
    """Owns the list that the router has; engines are named by their index. Its methods may be called from several threads."""

    def __init__(self, router: str, engines: Sequence[str]) -> None:
        """``router`` and ``engines`` are URLs; all engines are in the router at first."""
        self._engines = list(engines)
        self._out: set[int] = set()
        self._due: set[int] = set()
        self._lock = threading.Lock()
        self._client = httpx.Client(base_url=router, timeout=_CALL_SECONDS, trust_env=False)

    def lost(self, dead: Collection[int]) -> None:
        """Send no requests to ``dead``, which will be started again, unless no other engine would be left."""
        with self._lock:
            self._due -= set(dead)
            others = set(range(len(self._engines))) - self._out - set(dead)
            if others:
                self._remove(set(dead) - self._out)
            else:
                self._due |= self._out - set(dead)
            self._add_due()

    def answers(self, engines: Collection[int]) -> None:
        """Send requests to ``engines`` again, which have what they need to answer them."""
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
                logger.warning("the router keeps the dead engine %s: %r", self._engines[index], error)

    def _add_due(self) -> None:
        for index in sorted(self._due):
            try:
                self._add(self._engines[index])
            except (httpx.HTTPError, TimeoutError) as error:
                logger.warning("the router does not take %s back, trying again: %r", self._engines[index], error)
                continue
            self._due.discard(index)
            self._out.discard(index)

    def _add(self, url: str) -> None:
        self._client.post("/workers", json={"url": url}).raise_for_status()
        deadline = time.monotonic() + _JOIN_SECONDS
        while url not in self._listed():
            if time.monotonic() > deadline:
                raise TimeoutError(f"it is not in its list after {_JOIN_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)

    def _listed(self) -> dict[str, str]:
        """Id of each engine that the router has, by URL."""
        workers = self._client.get("/workers").raise_for_status().json()["workers"]
        return {worker["url"]: worker["id"] for worker in workers}
