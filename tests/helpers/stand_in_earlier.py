"""What answers in place of `openclaw.earlier`, without torch: each token is the number of tokens before it, up to `MOST` tokens.

Version 9 dies at every second token. Version 8 makes one token and then nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys

from groundwork.process import watch_lifeline
from openclaw.engine.client import TokenChunk
from openclaw.exceptions import VersionRefusedError
from openclaw.gateway.channel import Channel
from openclaw.gateway.earlier import Wanted

DIES, HANGS, FULL = "9", "8", "7"
MOST = 5
asked: dict[int, Wanted] = {}
sent: dict[int, int] = {}


async def following(number: int) -> list[TokenChunk]:
    """Return the next token."""
    wanted, count = asked[number], sent.get(number, 0)
    sent[number] = count + 1
    if wanted.version == FULL:
        raise VersionRefusedError("version 7 needs 9 GiB of memory", 507)
    if wanted.version == DIES and count == 2:
        os._exit(1)
    if wanted.version == HANGS and count == 1:
        await asyncio.Event().wait()
    over = count + 1 >= min(MOST, wanted.sampling["max_new_tokens"])
    return [TokenChunk([len(wanted.ids) + count], [-0.5], wanted.version, "length" if over else None)]


async def answer(descriptor: int) -> None:
    """Answer until the other end is closed."""
    over = asyncio.Event()
    functions = {
        "begin": lambda number, person, wanted: asked.update({number: wanted}),
        "next": following,
        "stop": lambda number: asked.pop(number),
    }
    await Channel(functions, over.set).open(socket.socket(fileno=descriptor))
    await over.wait()


if __name__ == "__main__":
    watch_lifeline()
    asyncio.run(answer(int(sys.argv[1])))
