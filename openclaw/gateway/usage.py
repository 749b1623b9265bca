"""Meters for clients of the gateway and of the Tinker server: ``GET /v1/usage``, prices, and quotas of tokens per day.

``GET /v1/usage`` tells an owner its own tokens and those of its children by day (`openclaw.ledger.usage`), an admin everybody's.
``?since=`` and ``?until=`` are days in UTC, both inclusive; without them it is the last `DAYS` days. ``?owner=`` names one owner.
Dollars stand beside the tokens if ``OPENCLAW_PRICES`` is set.

A quota bounds what a key may use in a day of UTC: ``OPENCLAW_QUOTAS`` for every key, or its line in the keys file instead. What
its children use counts for a key too, and an agent's episode for who created it. As with limits per minute, the reply that uses up
a quota is delivered whole, and the next request for a reply gets 429 until the day is over.

Guarantees: nobody learns from an answer whether another owner exists. Without a quota no request waits for the file. Stateless;
the file has the totals, so a restart forgets none.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from fastapi import FastAPI, Request, Response

from openclaw.config.meters import METERS, read_prices, read_quotas
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.auth import Client, Keyring
from openclaw.gateway.errors import ApiError, bad_request, from_ledger
from openclaw.gateway.guard import client_of
from openclaw.gateway.limits import RateLimitError
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.gateway.stream import json_response
from openclaw.ledger.exceptions import LedgerError
from openclaw.ledger.records import Tokens
from openclaw.ledger.usage import Usage, day_of
from openclaw.ledger.usage_page import amounts, buckets, quota_of, since_of, total
from openclaw.owners import CHILD, owner_of_key, owns

USAGE_PATH = "/v1/usage"


class UsageDesk:
    """Answers about the meters of one server.

    Attributes:
        prices: dollars per million tokens of each meter.
    """

    def __init__(
        self,
        config: RuntimeConfig,
        usage: Usage,
        keyring: Keyring,
        clock: Callable[[], float],
    ) -> None:
        """Create the desk.

        Args:
            config: has prices and quotas.
            usage: has the totals.
            keyring: has the quotas of single keys.
            clock: seconds since the epoch.
        """
        self.prices = read_prices(config.prices)
        self._quotas = read_quotas(config.quotas)
        self._usage = usage
        self._keyring = keyring
        self._clock = clock

    def quotas_of(self, key: str) -> Mapping[str, int]:
        """Return the most tokens per day of the key with this name: its own numbers, else those of every key."""
        return {**self._quotas, **self._keyring.quotas(key)}

    async def check(self, key: str) -> None:
        """Raise RateLimitError if a key, or a key that it is a child of, has used up a quota."""
        if any(self.quotas_of(name) for name in _with_parents(key)):
            await asyncio.to_thread(self.check_now, key)

    def check_now(self, key: str) -> None:
        """Do what :meth:`check` does, in a thread that may wait for the file."""
        for name in _with_parents(key):
            if quotas := self.quotas_of(name):
                used = self._today(owner_of_key(name))
                for kind, most in quotas.items():
                    if getattr(used, kind) >= most:
                        raise RateLimitError(
                            "quota",
                            f"the key {name!r} has used its {most} {_WORDS[kind]} of {day_of(self._clock())} (UTC), which the "
                            "operator raises with OPENCLAW_QUOTAS or in the keys file",
                            self._seconds_left(),
                        )

    async def page(self, client: Client, owner: str | None, since: str | None, until: str | None) -> dict[str, Any]:
        """Return what was counted, by day and owner.

        Args:
            client: who asks.
            owner: whose tokens, with those of children; None: all that the client reaches.
            since: first day.
            until: last day.

        Raises:
            ApiError: 400 for what is no day, 403 for another owner than the client's own.
        """
        today = datetime.fromtimestamp(self._clock(), UTC).date()
        last = today if until is None else _day(until, "until")
        first = since_of(last) if since is None else _day(since, "since")
        asked = (None if client.admin else client.owner) if owner is None else owner_of_key(owner)
        if not client.admin and (asked is None or not owns(client.owner, asked)):
            raise ApiError(
                403, "this key reads its own usage; leave out owner, or send an admin key", code="admin_key_required"
            )
        counted = await asyncio.to_thread(self._usage.days, str(first), str(last), asked)
        data = buckets(counted, self.prices)
        return {
            **{"object": "page", "since": str(first), "until": str(last), "data": data},
            "total": amounts(total(counted), self.prices),
            "quota": await self._quota(client.name if owner is None else owner),
        }

    async def count(self, metrics: GatewayMetrics) -> None:
        """Set the metrics to the totals of all owners; leave them if the ledger cannot be read."""
        try:
            found = await asyncio.to_thread(self._usage.total)
        except LedgerError:
            return
        for name in METERS:
            metrics.usage_tokens.labels(kind=name).set(getattr(found, name))

    async def _quota(self, key: str) -> dict[str, Any] | None:
        if not (quotas := self.quotas_of(key)):
            return None
        used = await asyncio.to_thread(self._today, owner_of_key(key))
        return quota_of(quotas, used, day_of(self._clock())) | {"ends_in": self._seconds_left()}

    def _today(self, owner: str) -> Tokens:
        try:
            return self._usage.total(day_of(self._clock()), owner)
        except LedgerError as error:
            raise from_ledger(error) from error

    def _seconds_left(self) -> int:
        now = datetime.fromtimestamp(self._clock(), UTC)
        midnight = datetime.combine(now.date() + timedelta(days=1), datetime.min.time(), UTC)
        return math.ceil((midnight - now).total_seconds())


_WORDS = {"sampled": "sampled tokens", "trained": "trained tokens", "total": "tokens of prompts and replies"}


def _with_parents(key: str) -> list[str]:
    """Return the names of a key and of those that it is a child of, the oldest first."""
    parts = key.split(CHILD)
    return [CHILD.join(parts[: end + 1]) for end in range(len(parts))]


def _day(text: str, param: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise bad_request(f"{param}={text[:40]!r} is no day; write it as 2026-11-29", param=param) from error


def add_usage_routes(app: FastAPI, desk: UsageDesk) -> None:
    """Add the route for the meters."""

    @app.get(USAGE_PATH)
    async def usage(
        request: Request, owner: str | None = None, since: str | None = None, until: str | None = None
    ) -> Response:
        """Return the tokens of the client's turns by day, or those of all owners to an admin key."""
        return json_response(await desk.page(client_of(request.scope), owner, since, until))
