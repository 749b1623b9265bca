"""The meters of tokens (`openclaw.ledger.usage`): their names, and amounts by name as prices and quotas write them.

Imports only the standard library and the errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from groundwork.exceptions import ConfigError

METERS = ("prefill", "cached", "sampled", "judged", "trained", "stale")
QUOTAS = ("sampled", "trained", "total")
"""What a quota may bound: tokens sampled, tokens trained, or those of prompts and replies together."""


def read_amounts(text: str, names: Sequence[str], where: str) -> dict[str, float]:
    """Return the numbers of a text such as ``sampled=0.4,trained=1``.

    Args:
        text: as a person wrote it.
        names: that it may have, each once.
        where: begins the error message.

    Raises:
        ConfigError: the text says something else; the message ends with what to type.
    """
    amounts: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = (word.strip() for word in part.partition("="))
        try:
            amount = float(number)
        except ValueError:
            amount = math.nan
        if name not in names or name in amounts or not 0 <= amount < math.inf:
            raise ConfigError(
                f"{where}: {part.strip()!r} is not NAME=NUMBER with a name of its own among {', '.join(names)}; "
                f"write for example {names[0]}=1,{names[1]}=2"
            )
        amounts[name] = amount
    return amounts


def read_prices(text: str | None) -> dict[str, float]:
    """Return the dollars per million tokens of each meter in ``OPENCLAW_PRICES``; none without it.

    Raises:
        ConfigError: see `read_amounts`.
    """
    return read_amounts(text, METERS, f"OPENCLAW_PRICES={text}") if text else {}


def read_quotas(text: str | None, where: str = "OPENCLAW_QUOTAS") -> dict[str, int]:
    """Return the most tokens per day of each of `QUOTAS` that a text names; none without a text.

    Raises:
        ConfigError: see `read_amounts`; or a number is not whole.
    """
    amounts = read_amounts(text, QUOTAS, f"{where}={text}") if text else {}
    if broken := [name for name, amount in amounts.items() if not amount.is_integer()]:
        raise ConfigError(
            f"{where}={text}: {broken[0]} is not a whole number of tokens; write for example sampled=100000"
        )
    return {name: int(amount) for name, amount in amounts.items()}
