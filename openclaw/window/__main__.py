"""The window's process: ``python -m openclaw.window DESCRIPTOR LEDGER RUN_DIR``, which only `openclaw.runtime.window` starts.

Guarantees: its looks read the ledger and never write it; what an admin asks of the run is written as its commands write it. It ends when its channel does. Looks run in threads, one at a time where they
read the ledger, and at a low priority, so that replies come first.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from groundwork.process import watch_lifeline
from openclaw.gateway.channel import answered_over
from openclaw.gateway.window_views import Asked
from openclaw.window.changes import Changes
from openclaw.window.views import Window, open_window

NICE = 5


async def answer(window: Window, descriptor: int) -> None:
    """Answer what comes over the socket of ``descriptor`` until the other end is closed."""
    looking = asyncio.Lock()
    changes = Changes(window)

    async def show(asked: Asked) -> bytes:
        return await asyncio.to_thread(window.show, asked)

    async def revisions(open_pages: Sequence[Asked]) -> list[str | None]:
        async with looking:
            return await asyncio.to_thread(changes.revisions, open_pages)

    async def roll_back(version: str) -> bytes:
        await asyncio.to_thread(window.roll_back, version)
        return b""

    async def accept() -> bytes:
        await asyncio.to_thread(window.accept)
        return b""

    functions = {"show": show, "revisions": revisions, "roll_back": roll_back, "accept": accept}
    await answered_over(descriptor, functions)


def main() -> None:
    """Run the process."""
    watch_lifeline()
    os.nice(NICE)
    descriptor, ledger, run_dir = sys.argv[1:]
    os.set_inheritable(int(descriptor), False)
    window = open_window(ledger, run_dir or None)
    asyncio.run(answer(window, int(descriptor)))
    os._exit(0)  # threads that still read have nobody to tell


if __name__ == "__main__":
    main()
