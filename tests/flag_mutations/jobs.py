"""Which tests run for which flag: those of its row in `tests/contract/flag_effects.py`, then others that mention it."""

from __future__ import annotations

import functools
from pathlib import Path

from slime.arguments.rollout import ENVIRONMENTS
from tests.contract.flag_effects import EFFECTS, INTEGRATION
from tests.contract.mentions import definitions, words_of
from tests.contract.test_flag_effects import accepted
from tests.flag_mutations.worker import Job

ROOT = Path(__file__).resolve().parents[2]
# Only plugins outside this repository read these, so they are lost in the parser instead.
READ_BY_PLUGINS = {option.attribute for option in ENVIRONMENTS.options}


@functools.cache
def row_of() -> dict[str, str]:
    """Return the test of every accepted flag."""
    return {flag: node for node, flags in EFFECTS.items() for flag in flags.split()}


def needs_engines(flag: str) -> bool:
    """Return whether the row of ``flag`` is a test with real engines or trainers."""
    return row_of()[flag].startswith(INTEGRATION)


def has_one_value(flag: str) -> bool:
    """Return whether ``flag`` can only be given its default."""
    action = accepted()[flag]
    return action.choices is not None and list(action.choices) == [action.default]


def job_of(flag: str, *, row: bool = True, others: int = 0, where: str = "effects") -> Job:
    """Return the job of an accepted flag: the test of its row, then ``others`` fast tests that mention it."""
    action = accepted()[flag]
    where = "parser" if action.dest in READ_BY_PLUGINS else where
    own = row_of()[flag]
    more = [node for node in mentioning(flag, action.dest) if node != own][:others]
    return Job(flag, action.dest, where, (*[own] * row, *more))


@functools.cache
def fast_tests() -> dict[str, frozenset[str]]:
    """Return the words of every fast test, those that check the table of effects left out."""
    found = {}
    for file in sorted(
        [*(ROOT / "tests" / "unit").rglob("test_*.py"), *(ROOT / "tests" / "contract").glob("test_*.py")]
    ):
        if file.name in ("test_flag_effects.py", "test_every_flag.py"):
            continue
        names = [name for name in definitions(file) if name.startswith("test_")]
        found |= {f"{file.relative_to(ROOT).as_posix()}::{name}": words_of(file, name) for name in names}
    return found


def mentioning(flag: str, attribute: str) -> list[str]:
    """Return the fast tests about ``flag``, those that write it as on a command line first."""
    typed = [node for node, words in fast_tests().items() if f"--{flag}" in words]
    named = [node for node, words in fast_tests().items() if attribute in words and node not in typed]
    return typed + named
