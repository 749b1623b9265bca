"""What people read of the meters: tokens, dollars and quotas as values that JSON can hold.

``GET /v1/usage`` and the window show the same, by this code. Pure functions over what `openclaw.ledger.usage` counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from itertools import groupby
from typing import Any

from openclaw.config.meters import METERS
from openclaw.ledger.records import Tokens
from openclaw.ledger.usage import OwnersDay
from openclaw.owners import LOCAL, NO_KEY_NAME

DAYS = 31
"""That are shown if nobody says since when."""
PER_MILLION = 1e6
Prices = Mapping[str, float]
"""Dollars per million tokens of each meter; none: nobody asks for dollars."""


def shown_owner(owner: str) -> str:
    """Return an owner's name for people."""
    return NO_KEY_NAME if owner == LOCAL else owner


def since_of(last: date) -> date:
    """Return the first of `DAYS` days that end with ``last``."""
    return date.fromordinal(max(1, last.toordinal() - DAYS + 1))


def amounts(tokens: Tokens, prices: Prices) -> dict[str, Any]:
    """Return the tokens of each meter, and dollars if there are prices."""
    found: dict[str, Any] = {f"{name}_tokens": getattr(tokens, name) for name in METERS}
    if prices:
        cost = sum(price * getattr(tokens, name) for name, price in prices.items()) / PER_MILLION
        found["dollars"] = round(cost, 6)
    return found


def buckets(counted: Sequence[OwnersDay], prices: Prices) -> list[dict[str, Any]]:
    """Return what each owner used on each day, in their order."""
    return [
        {
            "object": "bucket",
            "day": day,
            "results": [{"owner": shown_owner(row.owner), **amounts(row.tokens, prices)} for row in rows],
        }
        for day, rows in groupby(counted, lambda row: row.day)
    ]


def total(counted: Sequence[OwnersDay]) -> Tokens:
    """Return the sum over days and owners."""
    return sum((row.tokens for row in counted), Tokens())


def quota_of(quotas: Mapping[str, int], used: Tokens, day: str) -> dict[str, Any]:
    """Return what a key with ``quotas`` may use on a day and has used."""
    return {"day": day, **{kind: {"most": most, "used": getattr(used, kind)} for kind, most in quotas.items()}}
