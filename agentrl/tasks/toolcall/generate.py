"""A generated task from its name: family, split and number.

Guarantees: a name always gives the same task, byte for byte; see `agentrl.tasks.names`. A held-out family has no task for training.
"""

from __future__ import annotations

from agentrl.tasks.names import Split, known_parts, random_of
from agentrl.tasks.toolcall.draft import Draft
from agentrl.tasks.toolcall.families import FAMILIES, HELD_OUT


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
    advice = f"{', '.join(families_of('train'))}, or for heldout also {', '.join(HELD_OUT)}"
    return known_parts("toolcall", name, families_of, advice)


def generate(name: str) -> Draft:
    """Return the task of a name.

    Raises:
        ConfigError: there is no such task.
    """
    family, split, number = parse_name(name)
    return FAMILIES[family](random_of(family, split, number))
