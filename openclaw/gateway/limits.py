"""Limits per key (requests, tokens and feedback per minute, concurrent requests) and on the server's concurrent requests.

Guarantees: a refused request is a 429 in OpenAI's shape with ``Retry-After``, and is counted. A window is a minute that
begins with its first request. Tokens are charged at the end of a reply: the reply that uses up a window is delivered
whole, and the next request is refused. State: counters in memory, per key name.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Literal

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import FixedWindowRateLimiter

from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.errors import ApiError

Limit = Literal["requests", "tokens", "concurrent", "feedback_per_minute"]


class RateLimitError(ApiError):
    """The 429; ``limit`` names the limit."""

    def __init__(self, limit: Limit, message: str, retry_after: int) -> None:
        kind = "tokens" if limit == "tokens" else "requests"
        super().__init__(
            429,
            f"{message}; send it again in {retry_after} s",
            code="rate_limit_exceeded",
            kind=kind,
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

    async def enter(self, key: str, *, feedback: bool = False) -> None:
        """Count a request of ``key``; ``feedback``: it gives feedback, which has a limit of its own besides.

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
            if self._tokens and not await self._windows.test(self._tokens, key):
                raise RateLimitError(
                    "tokens",
                    f"this key has used its {self._tokens.amount} tokens per minute",
                    await self._wait(self._tokens, key),
                )
            if feedback and self._feedback and not await self._windows.hit(self._feedback, key):
                raise RateLimitError(
                    "feedback_per_minute",
                    f"this key has given feedback {self._feedback.amount} times in a minute",
                    await self._wait(self._feedback, key),
                )
            if self._requests and not await self._windows.hit(self._requests, key):
                raise RateLimitError(
                    "requests",
                    f"this key has used its {self._requests.amount} requests per minute",
                    await self._wait(self._requests, key),
                )
        except BaseException:
            self._forget(key)
            raise

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
