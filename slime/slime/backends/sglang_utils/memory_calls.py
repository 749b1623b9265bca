"""An engine that gives its GPU memory away for a while, and takes it back in two parts (``--offload-rollout``).

Guarantees: requests are held from :meth:`MemoryCalls.sleep` until all memory is back, none is refused or run without it; each part is
asked back once (SGLang's server ends when it is asked twice), so both calls may be repeated. A server that was started again has all
its memory. What is away belongs to the server that runs; the methods are called one at a time.
"""

from __future__ import annotations

from typing import Any

WEIGHTS: tuple[str, ...] = ("weights",)
CACHE: tuple[str, ...] = ("kv_cache", "cuda_graph")
"""Parts of the memory, as SGLang's routes name them. Weights come back empty unless they have a copy on the host."""


class MemoryCalls:
    """What an engine's class offers, over ``_post`` and ``pause_generation`` of that class."""

    _away: set[str]

    def _post(self, route: str, **body: Any) -> Any:
        raise NotImplementedError

    def pause_generation(self, mode: Any = "retract") -> None:
        raise NotImplementedError

    def continue_generation(self) -> None:
        raise NotImplementedError

    def sleep(self) -> None:
        """Hold all requests, and give away what memory is there; the prefix cache is emptied."""
        present = [part for part in WEIGHTS + CACHE if part not in self._away]
        if not present:
            return
        self.pause_generation("retract")
        self._post("/release_memory_occupation", tags=present)
        self._away.update(present)

    def wake(self, parts: tuple[str, ...]) -> None:
        """Take ``parts`` back, and continue the requests if that was the last of what was away."""
        back = [part for part in parts if part in self._away]
        if not back:
            return
        self._post("/resume_memory_occupation", tags=back)
        self._away.difference_update(back)
        self.continue_generation()
