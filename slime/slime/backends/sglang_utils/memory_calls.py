"""An engine that releases its GPU memory for a while and takes it back in two parts (``--offload-rollout``).

Guarantees: requests are held from :meth:`MemoryCalls.sleep` until all memory is back; none is refused or runs without
it. Each part is requested back once (SGLang's server dies when asked twice), so both calls may be repeated. A restarted
server has all its memory. The state belongs to the running server; call the methods one at a time.
"""

from __future__ import annotations

from typing import Any

WEIGHTS: tuple[str, ...] = ("weights",)
CACHE: tuple[str, ...] = ("kv_cache", "cuda_graph")
"""SGLang's names of the memory parts. Weights come back empty unless they have a host copy."""


class MemoryCalls:
    """Mixin for an engine's class, built on its ``_post`` and ``pause_generation``."""

    _away: set[str]

    def _post(self, route: str, **body: Any) -> Any:
        raise NotImplementedError

    def pause_generation(self, mode: Any = "retract") -> None:
        raise NotImplementedError

    def continue_generation(self) -> None:
        raise NotImplementedError

    def sleep(self) -> None:
        """Hold all requests, empty the prefix cache, and release all memory."""
        present = [part for part in WEIGHTS + CACHE if part not in self._away]
        if not present:
            return
        self.pause_generation("retract")
        self._post("/release_memory_occupation", tags=present)
        self._away.update(present)

    def wake(self, parts: tuple[str, ...]) -> None:
        """Take ``parts`` back; continue the requests once no memory is released any more."""
        back = [part for part in parts if part in self._away]
        if not back:
            return
        self._post("/resume_memory_occupation", tags=back)
        self._away.difference_update(back)
        self.continue_generation()
