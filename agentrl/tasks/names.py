"""The names of generated tasks, KIND/FAMILY/SPLIT/NUMBER, and the random generators that they stand for.

Guarantees: a name always gives the same generator. Numbers of the two splits become seeds of ranges that do not overlap, so no
task for training is one for evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from random import Random
from typing import Literal, get_args

from groundwork.exceptions import ConfigError

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


def known_parts(
    kind: str, name: str, families_of: Callable[[Split], Iterable[str]], advice: str | None = None
) -> tuple[str, Split, int]:
    """Return family, split and number of a task's name.

    Args:
        kind: first word of the name.
        name: of the task.
        families_of: the families that have tasks of a split.
        advice: the families in words; default: all that train.

    Raises:
        ConfigError: there is no such task.
    """
    parts = parts_of(kind, name)
    if parts is None or parts[0] not in families_of(parts[1]):
        raise ConfigError(
            f"there is no task {name!r}; write {kind}/FAMILY/SPLIT/NUMBER with a split of {', '.join(SPLITS)}, a number "
            f"below {SEEDS_PER_SPLIT} and a family of {advice or ', '.join(families_of('train'))}"
        )
    return parts


def random_of(family: str, split: Split, number: int) -> Random:
    """Return the generator of a task."""
    return Random(f"{family} {SPLITS.index(split) * SEEDS_PER_SPLIT + number}")
