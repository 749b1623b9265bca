"""Which cases of a test that has many are in the suite; all of them are in ``tests/run.sh --long``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def long_but(cases: Iterable[str], *kept: str) -> list[Any]:
    """Return the cases as parameters, those that are not kept with the marker ``long``."""
    named = list(cases)
    assert not {*kept} - {*named}, "there is no such case"
    return [case if case in kept else pytest.param(case, marks=pytest.mark.long) for case in named]
