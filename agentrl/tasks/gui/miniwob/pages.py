"""The families of MiniWoB++ that the package ``miniwob`` ships, and the tasks made of them.

A task is a family and a seed of the page's own random generator. Guarantees: a name always gives the same task; see
`agentrl.tasks.names`. A held-out family has no task for training.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from agentrl.tasks.names import SEEDS_PER_SPLIT, SPLITS, Split, known_parts
from groundwork.exceptions import ConfigError

INSIDE = "/pages"
"""Where the sandbox has the package's pages."""
HELD_OUT = ("click_link", "enter_password", "login_user")
TASKS_PER_FAMILY: dict[Split, int] = {"train": 200, "heldout": 20}


@cache
def html_folder() -> Path:
    """Return the package's folder of pages.

    Raises:
        ConfigError: the package is not installed.
    """
    spec = importlib.util.find_spec("miniwob")  # importing it would import its own driver
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the pages of MiniWoB++ are missing; run scripts/setup.sh, or pip install '.[gui]'")
    return Path(spec.submodule_search_locations[0]) / "html"


@cache
def families() -> tuple[str, ...]:
    """Return all families, such as ``click_test``.

    Raises:
        ConfigError: the package is not installed.
    """
    return tuple(sorted(path.stem.replace("-", "_") for path in (html_folder() / "miniwob").glob("*.html")))


def families_of(split: Split) -> list[str]:
    """Return the families that have tasks of a split."""
    return [family for family in families() if split == "heldout" or family not in HELD_OUT]


def task_name(family: str, split: Split, number: int) -> str:
    """Return the name of a task, such as ``miniwob/click_test/train/7``."""
    return f"miniwob/{family}/{split}/{number}"


def parse_name(name: str) -> tuple[str, str]:
    """Return family and seed of a task.

    Raises:
        ConfigError: there is no such task.
    """
    advice = f"the package miniwob, such as click_test; {', '.join(HELD_OUT)} are held out"
    family, split, number = known_parts("miniwob", name, families_of, advice)
    return family, f"{family} {SPLITS.index(split) * SEEDS_PER_SPLIT + number}"


def page_url(family: str) -> str:
    """Return the address of a family's page in the sandbox."""
    return f"file://{INSIDE}/miniwob/{family.replace('_', '-')}.html"
