"""When the runtime process looks for garbage: in a quiet moment, not in the middle of a reply.

Nearly all that a request makes is freed when it is over; only about one object in a request waits for Python's
collector. By default that looks after every 700 new objects, and nothing else runs meanwhile: with 190 replies under way
10 to 60 ms, several times a second.

Guarantees: what exists at `settle` is never looked at again; then the collector runs every `COLLECT_SECONDS`, as soon
after that as nothing is under way. Memory stays bounded on a server that is never quiet: more than `MOST_NEW_OBJECTS`
that were made and not freed start the collector wherever the process is. State: the interpreter's own.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

MOST_NEW_OBJECTS = 200_000  # some 50 MB
OLDER_GENERATIONS = (5, 5)
COLLECT_SECONDS = 30.0
LOOK_SECONDS = 0.5


def settle() -> None:
    """Keep what exists by now for good, and leave later garbage to `collect_when_quiet`."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(MOST_NEW_OBJECTS, *OLDER_GENERATIONS)


async def collect_when_quiet(busy: Callable[[], bool], every: float = COLLECT_SECONDS) -> None:
    """Collect garbage for ever, ``every`` so many seconds and later while ``busy()``."""
    while True:
        await asyncio.sleep(every)
        while busy():
            await asyncio.sleep(min(LOOK_SECONDS, every))
        gc.collect()
