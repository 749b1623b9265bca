"""The number that a reply gives as its answer."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

_NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:,\d{3})*(?:\.\d+)?(?![\w])")
_BOX = re.compile(r"\\boxed\{([^{}]*)\}")


def last_number(text: str) -> Decimal | None:
    r"""Return the number in the last ``\boxed{}``, or else the last number of a text; None without one.

    ``1,234``, ``-5``, ``3.50`` and ``$7`` are read as people write them; digits inside a word are not a number.
    """
    boxed = _BOX.findall(text)
    matches = _NUMBER.findall(boxed[-1]) if boxed else []
    matches = matches or _NUMBER.findall(text)
    return number(matches[-1]) if matches else None


def number(text: str) -> Decimal | None:
    """Return a number as people write it; None if the text is none."""
    try:
        value = Decimal(text.strip().lstrip("$").replace(",", "").replace("−", "-"))
    except InvalidOperation:
        return None
    return value if value.is_finite() else None
