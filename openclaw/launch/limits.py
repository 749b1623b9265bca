"""Shows the bounds on what clients may send (`openclaw.config.bounds`): the first ones in a line, and all of them."""

from __future__ import annotations

from collections.abc import Iterator

from openclaw.config.bounds import Row, rows
from openclaw.config.runtime import RuntimeConfig

SHORT = ("body_bytes", "requests_under_way", "context_tokens")


def short_limits(config: RuntimeConfig) -> str:
    """Return the bounds that a first user may meet, in one line."""
    values = {row.name: shown_value(row) for row in rows(config)}
    body, requests, context = (values[name] for name in SHORT)
    return f"{body} bytes and {context} tokens a request, {requests} requests at once"


def limit_lines(config: RuntimeConfig) -> Iterator[str]:
    """Yield one line per bound: name, value, unit, variable."""
    for row in rows(config):
        yield f"  {row.name:<40} {shown_value(row):<16} {row.unit:<26} {row.variable or 'fixed'}"


def shown_value(row: Row) -> str:
    """Return the value of a bound, ``none`` without one."""
    return "none" if row.value is None else f"{row.value:.15g}"
