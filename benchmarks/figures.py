"""One line per measured figure, the same for benchmarks and for the tests of `tests/gpu`.

Guarantees: a figure is the rest of a line of standard output, ``figure`` and then JSON with ``name``, ``value`` and ``unit``, so that a
program that reads the output of another one needs no file between them. Imports the standard library only.
"""

from __future__ import annotations

import json
import math
from typing import Any

PREFIX = "figure "


def record_figure(name: str, value: float, unit: str, *, limit: float | None = None, peer: float | None = None) -> None:
    """Print the figure ``name``.

    Args:
        name: what was measured, from the general to the particular: ``trainer/qwen3-4b/packed/peak``.
        value: the figure.
        unit: of value, limit and peer: ``GiB``, ``tokens/s``, ``s``; ``nats`` for differences of log probabilities.
        limit: the bound that the caller holds ``value`` to, if there is one.
        peer: the same figure of what ``value`` is compared with, from the same run.

    Raises:
        ValueError: when a number is not finite.
    """
    found: dict[str, Any] = {"name": name, "value": value, "unit": unit, "limit": limit, "peer": peer}
    numbers = {key: number for key, number in found.items() if isinstance(number, int | float)}
    for key, number in numbers.items():
        if not math.isfinite(number):
            raise ValueError(f"figure {name}: {key} is {number}; record finite numbers")
    rounded = {key: float(f"{number:.5g}") for key, number in numbers.items()}
    print(
        PREFIX + json.dumps({key: value for key, value in (found | rounded).items() if value is not None}), flush=True
    )


def figure_of(line: str) -> dict[str, Any] | None:
    """Return the figure at the end of ``line``, None where there is none.

    Pytest's dots for the tests before may stand in front of it.
    """
    _, prefix, text = line.partition(PREFIX + "{")
    if not prefix:
        return None
    try:
        found = json.loads("{" + text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"name", "value", "unit"} <= found.keys() else None


def described(figure: dict[str, Any]) -> str:
    """Return ``figure`` as one line for people."""
    beside = [f"{key} {figure[key]:g}" for key in ("limit", "peer") if key in figure]
    return f"{figure['name']}: {figure['value']:g} {figure['unit']}" + (f" ({', '.join(beside)})" if beside else "")
