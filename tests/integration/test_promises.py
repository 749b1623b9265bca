"""Every line that the project's documents tell users to type does what it did when the table was recorded.

Rows that type a script or module which an earlier row types are left to the long tests: they differ in variables and flags, whose
effects `tests/unit/launch` and `tests/contract` see in one process. Slow rows are left out; ``python -m benchmarks.promises`` tries
them too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from benchmarks.promise_parts.attempt import Grade, Typist
from benchmarks.promise_parts.rows import Row, read_table
from benchmarks.promises import recorded_grades

QUICK = [row for row in read_table() if not row.slow]
PROGRAM = re.compile(r"[\w./-]+\.(?:sh|py)\b|(?<=-m )[\w.]+")
"""A script or a module of Python."""


def cases() -> Iterator[object]:
    """Yield the rows as parameters; one whose programs are all known from earlier rows is a long test."""
    known = set[str]()
    for row in QUICK:
        typed = {each.rpartition("/")[2] for each in PROGRAM.findall(row.type)}
        again = bool(typed) and typed <= known
        known |= typed
        yield pytest.param(row, id=row.id, marks=pytest.mark.long if again else ())


@pytest.fixture(scope="module")
def typist(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typist]:
    typist = Typist(tmp_path_factory.mktemp("promises"), gateway=True)
    yield typist
    typist.close()


@pytest.mark.parametrize("row", cases())
def test_a_promise_is_what_is_recorded(row: Row, typist: Typist) -> None:
    outcome = typist.attempt(row)
    if outcome.grade is Grade.LEFT_OUT:
        pytest.skip(outcome.reason)
    assert outcome.grade == recorded_grades()[row.id], (
        f"{row.promise} is {outcome.grade}: {outcome.line}\n{outcome.output}\n"
        "if that is better, record it: python -m benchmarks.promises --quick --json benchmarks/baselines/promises.json"
    )
