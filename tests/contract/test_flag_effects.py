"""The table of `flag_effects.py`: every accepted flag has a row, every row a test, and the test is about the flag."""

from __future__ import annotations

import argparse
import functools
from collections import Counter
from pathlib import Path

import pytest

from slime.arguments import build_parser
from slime.arguments.refused import FIXED, REFUSED_PREFIX
from tests.contract.flag_effects import EFFECTS
from tests.contract.mentions import definitions, words_of


@functools.cache
def accepted() -> dict[str, argparse.Action]:
    """The flags in ``--help``, by their first spelling without dashes; those with one possible value left out."""
    fixed = {one.flag for one in FIXED}
    shown = (action for action in build_parser()._actions if action.help is not argparse.SUPPRESS)
    found = {
        next(name for name in action.option_strings if name.startswith("--")): action
        for action in shown
        if not action.dest.startswith(REFUSED_PREFIX) and action.dest != "help"
    }
    return {flag.removeprefix("--"): action for flag, action in found.items() if flag not in fixed}


def rows() -> list[tuple[str, str]]:
    return [(flag, node) for node, flags in EFFECTS.items() for flag in flags.split()]


def test_every_accepted_flag_has_one_row_and_no_row_is_left_over() -> None:
    count = Counter(flag for flag, _ in rows())
    assert not [flag for flag, number in count.items() if number > 1]
    missing, left_over = sorted(set(accepted()) - set(count)), sorted(set(count) - set(accepted()))
    assert not missing, f"name in flag_effects.py the test that shows what these flags do: {missing}"
    assert not left_over, f"flag_effects.py has rows of flags that are not accepted: {left_over}"


@pytest.mark.parametrize("node", EFFECTS)
def test_a_row_names_a_test_about_its_flags(node: str, repository: Path) -> None:
    path, _, name = node.partition("::")
    file = repository / path
    assert name in definitions(file), f"{path} has no {name}"
    actions, words = accepted(), words_of(file, name)
    silent = [flag for flag in EFFECTS[node].split() if not {*actions[flag].option_strings, actions[flag].dest} & words]
    assert not silent, f"{node} does not mention {silent}"


def test_the_flags_with_one_value_are_all_in_their_test(repository: Path) -> None:
    file = repository / "tests" / "unit" / "slime_core" / "test_arguments.py"
    assert "for fixed in FIXED:" in definitions(file)["test_meanings_that_always_hold"]
