"""What the student says: phrases put together from fragments that the tiny judge was never trained on."""

from __future__ import annotations

import random

from word_problems.feedback import approval
from word_problems.feedback import complaint as any_complaint


def complaint(rng: random.Random) -> str:
    """Return a complaint about formatting."""
    return any_complaint(rng, "held")


def thanks(rng: random.Random, following: str | None) -> str:
    """Return thanks, with the next message if there is one."""
    return approval(rng, "held", following)
