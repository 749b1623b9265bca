"""Which pages that people have open show something else than before.

Guarantees: what a person's page is told depends on what that page shows, on nothing else: `Window.revision` is a digest of the
values that its owner may see. Looking costs little: nothing is read again while the ledger and the metrics file stay as they are,
except every `RENEW_SECONDS`, because a view shows some other files besides; and at most `SHARE` of the time goes into it, however
many pages are open. A page that fails is unknown, and costs the others nothing. Used from one thread at a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openclaw.gateway.window_views import Asked
from openclaw.window.views import Window

logger = logging.getLogger(__name__)

RENEW_SECONDS = 10.0
SHARE = 0.1
BATCH_SECONDS = 0.1
"""After so long the next pages wait for the next round."""


@dataclass(frozen=True)
class _Seen:
    mark: object
    at: float
    revision: str | None


class Changes:
    """Looks at the pages that are open."""

    def __init__(self, window: Window, clock: Callable[[], float] = time.monotonic) -> None:
        """Look at ``window`` by a monotonic ``clock``."""
        self._window = window
        self._clock = clock
        self._seen: dict[object, _Seen] = {}
        self._rest_until = 0.0

    def revisions(self, open_pages: Sequence[Asked]) -> list[str | None]:
        """Return the revision of each page as it is now; None: nobody has looked since something changed."""
        mark = self._window.mark()
        self._seen = {page.key: self._seen[page.key] for page in open_pages if page.key in self._seen}
        started = self._clock()
        if started >= self._rest_until:
            self._look(open_pages, mark, started)
            self._rest_until = self._clock() + (self._clock() - started) * (1 / SHARE - 1)
        return [
            seen.revision if (seen := self._seen.get(page.key)) is not None and seen.mark == mark else None
            for page in open_pages
        ]

    def _look(self, open_pages: Sequence[Asked], mark: object, started: float) -> None:
        """Look at pages that may have changed, at those first that have waited the longest."""

        def last(page: Asked) -> float:
            return self._seen[page.key].at if page.key in self._seen else float("-inf")

        for page in sorted(open_pages, key=last):
            seen = self._seen.get(page.key)
            if seen is not None and seen.mark == mark and seen.at > started - RENEW_SECONDS:
                continue
            if self._clock() - started > BATCH_SECONDS:
                break
            try:
                revision = self._window.revision(page)
            except Exception:
                if seen is None or seen.revision is not None:
                    logger.exception("nobody knows what the page %s shows", page.view)
                revision = None
            self._seen[page.key] = _Seen(mark, started, revision)
