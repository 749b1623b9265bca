"""Clients that keep talking through every failure of the server, and record what it acknowledged.

A conversation is a question and complaints. A failed request is sent again, as people do.

Guarantees: a reply counts as acknowledged once its last byte was read. A next state counts as acknowledged once the reply
to its request was.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.streams import RefusedError, stream_events

FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 1.0
REQUEST_SECONDS = 90.0
TURNS = 4


@dataclass
class Journal:
    """What the clients saw; ``failures`` are (start, end, words) of requests that were refused or broken off."""

    replies: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    failures: list[tuple[float, float, str]] = field(default_factory=list)
    requests: int = 0
    longest_seconds: float = 0.0


@dataclass(frozen=True)
class Words:
    """The opening of a conversation and the reactions to replies."""

    question: Callable[[random.Random], str] = lambda rng: f"What is {rng.randrange(10)} + {rng.randrange(10)}?"
    reaction: Callable[[random.Random, str], str] = lambda rng, reply: f"No bold please, try {rng.randrange(100)}."


class Clients:
    """Talks from a thread of its own between ``start`` and ``stop``."""

    def __init__(
        self, url: str, count: int, seed: int, words: Words | None = None, patience: float = REQUEST_SECONDS
    ) -> None:
        """``count`` conversations at once with the gateway at ``url``; a client gives up after ``patience`` seconds."""
        self._patience = patience
        self._words = words or Words()
        self.journal = Journal()
        self._url = url
        self._count = count
        self._rng = random.Random(seed)
        self._name = uuid.uuid4().hex[:8]
        self._numbers = itertools.count()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="clients", daemon=True)

    def start(self) -> None:
        """Start the conversations."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the running requests and start no others."""
        self._stopping.set()
        self._thread.join(self._patience)

    def summary(self, refused: list[str]) -> dict[str, Any]:
        """Return what became of the requests, for a report; ``refused`` as `refused` gave it."""
        return {
            "requests": self.journal.requests,
            "replies": len(self.journal.replies),
            "requests_cut_off_by_the_gateways_death": len(self.journal.failures) - len(refused),
            "longest_request_seconds": round(self.journal.longest_seconds, 2),
        }

    async def _run(self) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=self._patience, trust_env=False) as client:
            await asyncio.gather(*(self._talk(client, random.Random(self._rng.random())) for _ in range(self._count)))

    async def _talk(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        while not self._stopping.is_set():
            session = f"{self._name}-{next(self._numbers)}"
            messages: list[dict[str, Any]] = [{"role": "user", "content": self._words.question(rng)}]
            last: str | None = None
            for _ in range(TURNS):
                reply = await self._ask_until_answered(client, session, messages, stream=rng.random() < 0.5)
                if reply is None:
                    return
                reply_id, text = reply
                self.journal.replies.add(reply_id)
                if last is not None:
                    self.journal.answered.add(last)
                last = reply_id
                messages += [
                    {"role": "assistant", "content": text},
                    {"role": "user", "content": self._words.reaction(rng, text)},
                ]
                await asyncio.sleep(rng.uniform(0.0, 0.2))

    async def _ask_until_answered(
        self, client: httpx.AsyncClient, session: str, messages: list[dict[str, Any]], *, stream: bool
    ) -> tuple[str, str] | None:
        pause = FIRST_RETRY_SECONDS
        while not self._stopping.is_set():
            started = time.monotonic()
            self.journal.requests += 1
            try:
                reply = await (_stream if stream else _ask)(client, session, messages)
            except (httpx.TransportError, RefusedError) as error:
                self.journal.failures.append((started, time.monotonic(), f"{type(error).__name__}: {error}"))
                await asyncio.sleep(pause)
                pause = min(MAX_RETRY_SECONDS, pause * 2)
                continue
            self.journal.longest_seconds = max(self.journal.longest_seconds, time.monotonic() - started)
            return reply
        return None

    def refused(self, excused: Callable[[float, float], bool]) -> list[str]:
        """Return the messages of failures that ``excused(start, end)`` does not explain."""
        return [words for start, end, words in self.journal.failures if not excused(start, end)]


async def _ask(client: httpx.AsyncClient, session: str, messages: list[dict[str, Any]]) -> tuple[str, str]:
    body = {"model": "m", "messages": messages}
    answer = await client.post("/v1/chat/completions", json=body, headers={"X-Session-Id": session})
    if answer.status_code != 200:
        raise RefusedError(f"{answer.status_code}: {answer.text[:200]}")
    reply = answer.json()
    return reply["id"], reply["choices"][0]["message"]["content"]


async def _stream(client: httpx.AsyncClient, session: str, messages: list[dict[str, Any]]) -> tuple[str, str]:
    text, reply_id = "", ""
    async for event in stream_events(client, session, {"messages": messages}):
        reply_id = event["id"]
        text += (event["choices"][0]["delta"].get("content") or "") if event["choices"] else ""
    return reply_id, text
