"""The names of generated tasks, KIND/FAMILY/SPLIT/NUMBER, and the random generators that they stand for.

Guarantees: a name always gives the same generator. Numbers of the two splits become seeds of ranges that do not overlap, so no
task for training is one for evaluation.
"""

from __future__ import annotations

import re
from random import Random
from typing import Literal, get_args

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = get_args(Split)
SEEDS_PER_SPLIT = 1_000_000


def parts_of(kind: str, name: str) -> tuple[str, Split, int] | None:
    """Return family, split and number of a name; None if no name of the kind has this form."""
    match = re.fullmatch(rf"{kind}/(\w+)/(\w+)/(0|[1-9][0-9]{{0,5}})", name)
    splits: dict[str, Split] = {split: split for split in SPLITS}
    if match is None or match[2] not in splits:
        return None
    return match[1], splits[match[2]], int(match[3])


def random_of(family: str, split: Split, number: int) -> Random:
    """Return the generator of a task."""
    return Random(f"{family} {SPLITS.index(split) * SEEDS_PER_SPLIT + number}")
