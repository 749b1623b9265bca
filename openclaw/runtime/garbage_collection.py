"""Collect garbage while the runtime process is idle, not in the middle of a reply.

Nearly all objects of a request are freed when it ends; only about one per request needs Python's collector. By default the
collector runs after every 700 new objects and blocks everything else: with 190 replies under way for 10 to 60 ms, several
times a second.

Guarantees:

* The collector never scans objects that exist at `settle` again.
* It then runs about every `COLLECT_SECONDS`, once no reply is under way.
* Memory stays bounded on a server that is never idle: more than `groundwork.garbage.MAX_NEW_OBJECTS` unfreed new objects start the collector
  at once.

The only state is the interpreter's own.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

from groundwork.garbage import collect_rarely

COLLECT_SECONDS = 30.0
LOOK_SECONDS = 0.5


def settle() -> None:
    """Exempt all current objects from collection, and leave later garbage to `collect_when_quiet`."""
    gc.collect()
    gc.freeze()
    collect_rarely()


async def collect_when_quiet(busy: Callable[[], bool], every: float = COLLECT_SECONDS) -> None:
    """Collect garbage forever, each time ``every`` seconds later, or once ``busy()`` is false."""
    while True:
        await asyncio.sleep(every)
        while busy():
            await asyncio.sleep(min(LOOK_SECONDS, every))
        gc.collect()
