"""A generated task from its name: family, split and number.

Guarantees: a name always gives the same task, byte for byte. Numbers of the two splits become seeds of ranges that do not
overlap, and a held-out family has no task for training, so no task for training is one for evaluation.
"""

from __future__ import annotations

import re
from random import Random
from typing import Literal, get_args

from agentrl.exceptions import ConfigError
from agentrl.tasks.toolcall.draft import Draft
from agentrl.tasks.toolcall.families import FAMILIES, HELD_OUT

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = get_args(Split)
SEEDS_PER_SPLIT = 1_000_000


def task_name(family: str, split: Split, number: int) -> str:
    """Return the name of a task, such as ``toolcall/chain/train/7``."""
    return f"toolcall/{family}/{split}/{number}"


def families_of(split: Split) -> list[str]:
    """Return the families that have tasks of a split."""
    return [family for family in FAMILIES if split == "heldout" or family not in HELD_OUT]


def parse_name(name: str) -> tuple[str, Split, int]:
    """Return family, split and number of a name.

    Raises:
        ConfigError: there is no such task.
    """
    match = re.fullmatch(r"toolcall/(\w+)/(\w+)/(0|[1-9][0-9]{0,5})", name)
    splits: dict[str, Split] = {split: split for split in SPLITS}
    if match is None or match[2] not in splits or match[1] not in families_of(splits[match[2]]):
        raise ConfigError(
            f"there is no task {name!r}; write toolcall/FAMILY/SPLIT/NUMBER with a split of {', '.join(SPLITS)}, a number "
            f"below {SEEDS_PER_SPLIT} and a family of {', '.join(families_of('train'))}, or for heldout also "
            f"{', '.join(HELD_OUT)}"
        )
    return match[1], splits[match[2]], int(match[3])


def generate(name: str) -> Draft:
    """Return the task of a name.

    Raises:
        ConfigError: there is no such task.
    """
    family, split, number = parse_name(name)
    return FAMILIES[family](Random(f"{family} {SPLITS.index(split) * SEEDS_PER_SPLIT + number}"))
