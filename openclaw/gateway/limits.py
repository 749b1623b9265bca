"""Bounds on what requests take: bytes and time of their bodies, requests and tokens per key, places in the event loop.

`Bodies` reads a body before its request counts as under way. It has at most ``OPENCLAW_MAX_BODY_BYTES`` and is JSON by its
``Content-Type``, which a page of another origin cannot send without asking first. One that stalls or trickles gets 408; time in
which the process itself stood still does not count.
The bodies that no handler has taken yet have together `BODY_MEMORY` bytes. When they reach it, the keys with the largest
share get 503, and one slow key cannot fill the memory for the others.

`RateLimits` bounds requests, tokens and feedback per minute, concurrent requests of a key, and those of the server. A
key may also have a quota per day, for replies alone (`openclaw.gateway.usage`). A
refused request is a 429 in its path's shape with ``Retry-After``, and is counted. A window is a minute that begins with its
first request. Tokens are charged at the end of a reply: the reply that uses up a window is delivered whole, and the next
request is refused.

`Admission` lets `AT_ONCE` requests begin per round of the event loop, first come, first served, because reading and
rendering one blocks the loop for about a millisecond. Each class owns its counters, in memory, for one event loop.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import orjson
from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import FixedWindowRateLimiter
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.types import Receive

from openclaw.config.bounds import BODY_MEMORY, BODY_SECONDS, BODY_STALL_SECONDS, Bound
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.errors import ApiError, ClientGoneError, bad_request, from_validation

Body = TypeVar("Body", bound=BaseModel)
Limit = Literal["requests", "tokens", "concurrent", "feedback_per_minute", "wrong_keys", "quota"]


INSUFFICIENT = "insufficient_quota"
"""OpenAI's type and code of a 429 that a minute's wait does not end."""


class RateLimitError(ApiError):
    """The 429; ``limit`` names the limit."""

    def __init__(self, limit: Limit, message: str, retry_after: int) -> None:
        kind = "tokens" if limit == "tokens" else "requests"
        super().__init__(
            429,
            f"{message}; send it again in {retry_after} s",
            code=INSUFFICIENT if limit == "quota" else "rate_limit_exceeded",
            kind=INSUFFICIENT if limit == "quota" else kind,
            retry_after=retry_after,
        )
        self.limit: Limit = limit


def too_many_at_once(most: int) -> RateLimitError:
    """Return the 429 of a key that has ``most`` requests under way."""
    return RateLimitError("concurrent", f"this key has reached its limit of {most} concurrent requests", 1)


class BusyError(ApiError):
    """The 503 of a server whose concurrent requests have reached their limit."""

    def __init__(self, most: int) -> None:
        super().__init__(
            503,
            f"{most} requests are under way, the server's limit; send it again in 1 s",
            code="server_busy",
            limit="requests_under_way",
        )


class RateLimits:
    """Counters per key and over all keys; call `enter`, then `leave` once."""

    def __init__(
        self,
        requests: int | None = None,
        tokens: int | None = None,
        concurrent: int | None = None,
        together: int | None = None,
        feedback: int | None = None,
    ) -> None:
        """Set the limits; None means unlimited. ``together`` limits the concurrent requests of all keys."""
        self._together = together
        self._windows = FixedWindowRateLimiter(MemoryStorage())
        self._requests = RateLimitItemPerMinute(requests, namespace="requests") if requests else None
        self._tokens = RateLimitItemPerMinute(tokens, namespace="tokens") if tokens else None
        self._feedback = RateLimitItemPerMinute(feedback, namespace="feedback") if feedback else None
        self._concurrent = concurrent
        self._under_way: Counter[str] = Counter()
        self.check_quota: Callable[[str], Awaitable[None]] | None = None
        """Raises RateLimitError if a key has used up what it may use in a day; None: there are no quotas."""

    @staticmethod
    def of(config: RuntimeConfig) -> RateLimits:
        """Return the limits of a configuration."""
        return RateLimits(
            config.rate_limit_requests,
            config.rate_limit_tokens,
            config.concurrent_per_key,
            config.max_requests,
            config.rate_limit_feedback,
        )

    async def enter(self, key: str, *, feedback: bool = False, reply: bool = False) -> None:
        """Count a request of ``key``.

        Args:
            key: its name.
            feedback: it gives feedback, which has a limit of its own besides.
            reply: it asks for a reply, which quotas may refuse.

        Raises:
            BusyError: if the server is at its limit; the request is then not counted.
            RateLimitError: if the key is at a limit; the request is then not counted.
        """
        if self._together and self._under_way.total() >= self._together:
            raise BusyError(self._together)
        if self._concurrent and self._under_way[key] >= self._concurrent:
            raise too_many_at_once(self._concurrent)
        # Count before the first await, so that no other request slips past the limit meanwhile.
        self._under_way[key] += 1
        try:
            if reply and self.check_quota is not None:
                await self.check_quota(key)
            if self._tokens and not await self._windows.test(self._tokens, key):
                raise RateLimitError(
                    "tokens",
                    f"this key has used its {self._tokens.amount} tokens per minute",
                    await self._wait(self._tokens, key),
                )
            if feedback:
                await self.count_feedback(key)
            if self._requests and not await self._windows.hit(self._requests, key):
                raise RateLimitError(
                    "requests",
                    f"this key has used its {self._requests.amount} requests per minute",
                    await self._wait(self._requests, key),
                )
        except BaseException:
            self._forget(key)
            raise

    async def count_feedback(self, key: str) -> None:
        """Count feedback of ``key`` alone, whose request is counted already.

        Raises:
            RateLimitError: if the key is at its limit.
        """
        if self._feedback and not await self._windows.hit(self._feedback, key):
            raise RateLimitError(
                "feedback_per_minute",
                f"this key has given feedback {self._feedback.amount} times in a minute",
                await self._wait(self._feedback, key),
            )

    async def leave(self, key: str, tokens: int) -> None:
        """End a request and charge the tokens of its prompt and reply."""
        self._forget(key)
        if self._tokens and tokens:
            await self._windows.hit(self._tokens, key, cost=tokens)

    def _forget(self, key: str) -> None:
        self._under_way[key] -= 1
        if not self._under_way[key]:
            del self._under_way[key]

    async def _wait(self, item: RateLimitItemPerMinute, key: str) -> int:
        stats = await self._windows.get_window_stats(item, key)
        return max(1, math.ceil(stats.reset_time - time.time()))


SCOPE_NAME = "openclaw.body"
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
BYTES_A_SECOND = 16384.0
"""Of `BODY_SECONDS`: each arrived 16 KiB give a slow client one more second."""
STANDSTILL_SECONDS = 1.0
"""A timer that is so late says that the process was stopped or starved, which is not the client's fault."""


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

    async def read(
        self, scope: MutableMapping[str, Any], headers: Headers, receive: Receive, key: str, form: Bound | None = None
    ) -> None:
        """Put the body of a request of ``key`` into its scope, for `take_body`; with ``form`` one of a page, of at most that size.

        Raises:
            ApiError: the body is of another type, too large, or too slow; or there is no room for it.
            ClientGoneError: if the client closed the connection before the end of the body.
        """
        if not _has_body(headers):
            return
        _check_type(headers, JSON if form is None else FORM)
        stated = headers.get("content-length", "0" if form is None else "")
        if form is not None and not (stated.isdigit() and int(stated) <= form.most):
            raise too_large(form.most, limit=form.name)
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
        due = moved + self._stall_seconds
        while True:
            try:
                async with asyncio.timeout_at(due) as patience:
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
                            due = min(moved + self._stall_seconds, whole)
                            patience.reschedule(due)
            except TimeoutError as error:
                now = loop.time()
                if now - due < STANDSTILL_SECONDS:
                    stalled = now - moved >= self._stall_seconds
                    raise self._too_slow(BODY_STALL_SECONDS if stalled else BODY_SECONDS) from error
                begun, moved = begun + now - due, moved + now - due
                due = now + STANDSTILL_SECONDS  # time to read what came meanwhile

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


def parse_body(model: type[Body], body: bytes, bound: Bound) -> Body:
    """Return the request in a small body.

    Raises:
        ApiError: 400, naming the invalid field; 413 for a body beyond ``bound``.
    """
    if len(body) > bound.most:
        raise too_large(bound.most, limit=bound.name)
    try:
        return model.model_validate(orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise bad_request("the body is not JSON", code="invalid_json") from error
    except ValidationError as error:
        raise from_validation(error) from error


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0").strip("0") != ""


def _check_type(headers: Headers, media_type: str) -> None:
    stated = headers.get("content-type", "")
    if stated.partition(";")[0].strip().lower() != media_type:
        what = "JSON" if media_type == JSON else "a form"
        raise ApiError(
            415,
            f"the body must be {what}; send the header 'Content-Type: {media_type}'",
            code="unsupported_media_type",
            param="content-type",
        )


AT_ONCE = 4


class Admission:
    """A queue in front of new requests; `enter` returns when a request may begin."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._entered = 0

    async def enter(self) -> None:
        """Wait until fewer than `AT_ONCE` requests have begun in this round of the event loop."""
        loop = asyncio.get_running_loop()
        if self._entered == 0:
            loop.call_soon(self._next_round)
        if self._entered < AT_ONCE and not self._waiting:
            self._entered += 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next_round(self) -> None:
        self._entered = 0
        while self._waiting and self._entered < AT_ONCE:
            turn = self._waiting.popleft()
            if not turn.done():  # otherwise its request was cancelled
                turn.set_result(None)
                self._entered += 1
        if self._entered:
            asyncio.get_running_loop().call_soon(self._next_round)
