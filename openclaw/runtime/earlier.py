"""Earlier versions of a run's weights for the gateway (`openclaw.gateway.earlier.EarlierVersions`), and the process that has one.

Guarantees: those of `KeptProcess`. At most `MOST_REPLIES` replies are asked for at a time, `MOST_OF_A_PERSON` of them by one person;
a further one is refused. A reply whose process ends goes on in the next one from its last token. With an adapter per person, a
version is asked by its person alone: not by another one, nor by a child key. Owned by the leading process of a gateway.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager

from openclaw.config.runtime import RuntimeConfig
from openclaw.engine.client import MIN_NEW_TOKENS, TokenChunk
from openclaw.exceptions import VersionRefusedError
from openclaw.gateway.channel import ChannelLostError
from openclaw.gateway.earlier import Wanted
from openclaw.owners import root
from openclaw.runtime.kept_process import KeptProcess
from openclaw.runtime.kept_versions import kept_or_base
from openclaw.runtime.where import scratch_of

logger = logging.getLogger(__name__)

PROGRAM = "openclaw.earlier"
IDLE_SECONDS = 300.0
"""How long a version stays in memory after its last reply."""
PATIENCE_SECONDS = 900.0
"""How long nothing may come of a reply: the replies before it, and the loading of large weights, take minutes."""
TRIES = 2
MOST_REPLIES, MOST_OF_A_PERSON = 4, 2


class EarlierProcess:
    """The earlier versions of one run."""

    def __init__(self, config: RuntimeConfig, idle_seconds: float = IDLE_SECONDS) -> None:
        """Prepare to answer for the run of ``config``, which has a folder; nothing is started."""
        config.require("run_dir")
        self._run_dir = config.run_dir or ""
        self._per_person = config.adapter_per_person
        places = [config.ledger or "", self._run_dir]
        hidden = {"CUDA_VISIBLE_DEVICES": ""}
        self.process = KeptProcess(
            PROGRAM, places, name="earlier version", idle_seconds=idle_seconds, environment=hidden
        )
        self._numbers = itertools.count(1)
        self._asked: Counter[str] = Counter()
        self._forgetting = 0
        self._may_start = asyncio.Event()
        self._may_start.set()

    async def kept(self, owner: str) -> list[str]:
        """Return the versions that ``owner`` may ask, newest first."""
        return await asyncio.to_thread(kept_or_base, self._run_dir, owner, per_person=self._per_person)

    async def generate(self, owner: str, wanted: Wanted) -> AsyncGenerator[TokenChunk, None]:
        """Yield the reply of a version; the last chunk has ``finish``. Close the iterator to abort.

        Raises:
            VersionRefusedError: the version cannot answer, or others wait already.
        """
        done: list[int] = []
        with self._counted(root(owner)), self.process.used():
            for _ in range(TRIES):
                try:
                    async with aclosing(self._attempt(owner, _rest_of(wanted, done))) as chunks:
                        async for chunk in chunks:
                            done += chunk.ids
                            yield chunk
                    return
                except ChannelLostError:
                    logger.warning("the process of version %s ended after %d tokens", wanted.version, len(done))
                    if len(done) >= wanted.sampling["max_new_tokens"]:
                        yield TokenChunk([], [], wanted.version, finish="length")
                        return
                except TimeoutError:
                    logger.error("version %s gave no token for %g s", wanted.version, PATIENCE_SECONDS)
                    self.process.end()
                    break
        raise VersionRefusedError(
            f"version {wanted.version} cannot answer now: its process ended; the server's log may say why", 500
        )

    @asynccontextmanager
    async def forgetting(self) -> AsyncGenerator[None, None]:
        """End the process, whose memory and folder may have what a person asks to forget; it starts again after the block.

        So no version is loaded while its files, or those of a load, are deleted: a reply that is under way goes on afterwards.
        """
        self._forgetting += 1
        self._may_start.clear()
        try:
            await self.process.close()
            await asyncio.to_thread(shutil.rmtree, scratch_of(self._run_dir), ignore_errors=True)
            yield
        finally:
            self._forgetting -= 1
            if not self._forgetting:
                self._may_start.set()

    async def close(self) -> None:
        """End the process."""
        await self.process.close()

    @contextmanager
    def _counted(self, person: str) -> Iterator[None]:
        if self._asked.total() >= MOST_REPLIES or self._asked[person] >= MOST_OF_A_PERSON:
            raise VersionRefusedError(
                "earlier versions answer a few at a time, and others wait already; send it again in a minute", 429
            )
        self._asked[person] += 1
        try:
            yield
        finally:
            self._asked[person] -= 1
            if not self._asked[person]:
                del self._asked[person]

    async def _attempt(self, owner: str, wanted: Wanted) -> AsyncGenerator[TokenChunk, None]:
        while self._forgetting:
            await self._may_start.wait()
        channel = await self.process.channel()
        number = next(self._numbers)
        channel.tell("begin", number, root(owner) if self._per_person else None, wanted)
        try:
            while True:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    chunks: list[TokenChunk] = await channel.ask("next", number)
                for chunk in chunks:
                    yield chunk
                    if chunk.finish is not None:
                        return
        finally:
            channel.tell("stop", number)


def _rest_of(wanted: Wanted, done: list[int]) -> Wanted:
    """Return what is wanted after the tokens that are ``done``."""
    sampling = {**wanted.sampling, "max_new_tokens": wanted.sampling["max_new_tokens"] - len(done)}
    if MIN_NEW_TOKENS in sampling:
        sampling[MIN_NEW_TOKENS] = max(0, sampling[MIN_NEW_TOKENS] - len(done))
    return wanted._replace(ids=[*wanted.ids, *done], sampling=sampling)
