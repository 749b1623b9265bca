"""Request bodies: read before a request counts as under way, within bounds on size, time and memory.

Guarantees: a body has at most ``OPENCLAW_MAX_BODY_BYTES`` and is JSON by its ``Content-Type``, which a page of another
origin cannot send without asking first. One that stalls or trickles gets 408. The bodies that no handler has taken yet
have together `BODY_MEMORY` bytes. When they reach it, the keys with the largest share get 503, and one slow key cannot
fill the memory for the others. Owns the count of these bytes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Receive

from openclaw.config.bounds import BODY_MEMORY, BODY_SECONDS, BODY_STALL_SECONDS, Bound
from openclaw.gateway.errors import ApiError, ClientGoneError
from openclaw.gateway.limits import too_many_at_once

SCOPE_NAME = "openclaw.body"
JSON = "application/json"
BYTES_A_SECOND = 16384.0
"""Of `BODY_SECONDS`: each arrived 16 KiB give a slow client one more second."""


@dataclass
class Held:
    """A body in memory, in the order in which its parts came."""

    owner: Bodies
    key: str
    parts: list[bytes] = field(default_factory=list)
    size: int = 0


class Bodies:
    """Reads the bodies of one server; after `read`, `take_body` once."""

    def __init__(
        self,
        most_bytes: int,
        *,
        most_of_a_key: int | None = None,
        memory: int = BODY_MEMORY.most,
        stall_seconds: float = BODY_STALL_SECONDS.most,
        seconds: float = BODY_SECONDS.most,
    ) -> None:
        """Set the bounds.

        Args:
            most_bytes: of one body.
            most_of_a_key: bodies of one key that are read at a time; None means unlimited.
            memory: bytes of all bodies in memory.
            stall_seconds: without a byte.
            seconds: for a body, plus those for its size.
        """
        self._most_bytes = most_bytes
        self._most_of_a_key = most_of_a_key
        self._memory = memory
        self._stall_seconds = stall_seconds
        self._seconds = seconds
        self._bytes: Counter[str] = Counter()
        self._reading: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """Return the bytes in memory."""
        return self._bytes.total()

    async def read(self, scope: MutableMapping[str, Any], headers: Headers, receive: Receive, key: str) -> None:
        """Put the body of a request of ``key`` into its scope, for `take_body`.

        Raises:
            ApiError: the body is not JSON, too large, or too slow; or there is no room for it.
            ClientGoneError: if the client closed the connection before the end of the body.
        """
        if not _has_body(headers):
            return
        _check_type(headers)
        stated = headers.get("content-length", "0")
        if stated.isdigit() and int(stated) > self._most_bytes:
            raise too_large(self._most_bytes, limit="body_bytes")
        if self._most_of_a_key and self._reading[key] >= self._most_of_a_key:
            raise too_many_at_once(self._most_of_a_key)
        held = scope[SCOPE_NAME] = Held(self, key)
        self._reading[key] += 1
        try:
            await self._receive(held, receive)
        finally:
            self._reading[key] -= 1
            if not self._reading[key]:
                del self._reading[key]

    def release(self, held: Held) -> None:
        """Stop counting a body."""
        self._bytes[held.key] -= held.size
        if not self._bytes[held.key]:
            del self._bytes[held.key]

    async def _receive(self, held: Held, receive: Receive) -> None:
        loop = asyncio.get_running_loop()
        begun = moved = loop.time()
        try:
            async with asyncio.timeout(self._stall_seconds) as patience:
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGoneError
                    part = message.get("body", b"")
                    if part:
                        self._add(held, part)
                    if not message.get("more_body", False):
                        return
                    if part:
                        moved = loop.time()
                        whole = begun + self._seconds + held.size / BYTES_A_SECOND
                        patience.reschedule(min(moved + self._stall_seconds, whole))
        except TimeoutError as error:
            stalled = loop.time() - moved >= self._stall_seconds
            raise self._too_slow(BODY_STALL_SECONDS if stalled else BODY_SECONDS) from error

    def _add(self, held: Held, part: bytes) -> None:
        if held.size + len(part) > self._most_bytes:
            raise too_large(self._most_bytes, limit="body_bytes")
        together = self.held + len(part)
        share = self._memory / len(self._bytes.keys() | {held.key})
        if together > self._memory and self._bytes[held.key] + len(part) > share:
            raise ApiError(
                503,
                f"bodies of {self._memory} bytes wait to be read, the server's limit; send it again in 1 s",
                code="server_busy",
                limit=BODY_MEMORY.name,
            )
        held.parts.append(part)
        held.size += len(part)
        self._bytes[held.key] += len(part)

    def _too_slow(self, bound: Bound) -> ApiError:
        return ApiError(
            408,
            f"the body came too slowly: {self._stall_seconds:g} s without a byte, or {self._seconds:g} s and one more "
            "for each 16 KiB; send it again",
            code="request_timeout",
            limit=bound.name,
        )


def too_large(most: int, *, limit: str) -> ApiError:
    """Return the 413 for a body of more than ``most`` bytes; ``limit`` names the bound."""
    return ApiError(413, f"the body has more than {most} bytes; send less", code="request_too_large", limit=limit)


def take_body(scope: MutableMapping[str, Any]) -> bytes:
    """Return the body that `Bodies.read` put into the scope, empty without one; a second call returns nothing."""
    held: Held | None = scope.pop(SCOPE_NAME, None)
    if held is None:
        return b""
    held.owner.release(held)
    return b"".join(held.parts)


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0").strip("0") != ""


def _check_type(headers: Headers) -> None:
    stated = headers.get("content-type", "")
    if stated.partition(";")[0].strip().lower() != JSON:
        raise ApiError(
            415,
            f"the body must be JSON; send the header 'Content-Type: {JSON}'",
            code="unsupported_media_type",
            param="content-type",
        )
