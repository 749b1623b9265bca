"""Merges several asynchronous streams into one, in order of arrival.

Guarantees: items of one source keep their order. When a source fails or the reader leaves, every source is closed before
control returns. The buffer of unread items is unbounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def interleave(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yield the items of all sources until the last one ends; raise the first error of any."""
    queue: asyncio.Queue[tuple[T] | asyncio.Task[None]] = asyncio.Queue()
    tasks = [asyncio.create_task(_pump(source, queue)) for source in sources]
    for task in tasks:
        task.add_done_callback(queue.put_nowait)
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, tuple):
                yield item[0]
            else:
                item.result()
                running -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(source: AsyncGenerator[T, None], queue: asyncio.Queue[tuple[T] | asyncio.Task[None]]) -> None:
    async with aclosing(source):
        async for item in source:
            queue.put_nowait((item,))
