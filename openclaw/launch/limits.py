"""Shows the bounds on what clients may send (`openclaw.config.bounds`): those that variables set, and all of them."""

from __future__ import annotations

from collections.abc import Iterator

from openclaw.config.bounds import Row, rows
from openclaw.config.runtime import RuntimeConfig

PER_LINE = 3


def adjustable_lines(config: RuntimeConfig) -> Iterator[str]:
    """Yield the bounds that variables set, a few per line."""
    shown = [f"{row.name} {shown_value(row)}" for row in rows(config) if row.variable]
    for start in range(0, len(shown), PER_LINE):
        yield "  " + ", ".join(shown[start : start + PER_LINE])


def limit_lines(config: RuntimeConfig) -> Iterator[str]:
    """Yield one line per bound: name, value, unit, variable."""
    for row in rows(config):
        yield f"  {row.name:<40} {shown_value(row):<16} {row.unit:<26} {row.variable or 'fixed'}"


def shown_value(row: Row) -> str:
    """Return the value of a bound, ``none`` without one."""
    return "none" if row.value is None else f"{row.value:.15g}"
