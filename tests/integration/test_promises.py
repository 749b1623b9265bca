"""Every line that the project's documents tell users to type does what it did when the table was recorded.

Slow rows are left out; ``python -m benchmarks.promises`` tries them too.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.promise_parts.attempt import Grade, Typist
from benchmarks.promise_parts.rows import Row, read_table
from benchmarks.promises import recorded_grades

QUICK = [row for row in read_table() if not row.slow]


@pytest.fixture(scope="module")
def typist(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typist]:
    typist = Typist(tmp_path_factory.mktemp("promises"), gateway=True)
    yield typist
    typist.close()


@pytest.mark.parametrize("row", QUICK, ids=lambda row: row.id)
def test_a_promise_is_what_is_recorded(row: Row, typist: Typist) -> None:
    outcome = typist.attempt(row)
    if outcome.grade is Grade.LEFT_OUT:
        pytest.skip(outcome.reason)
    assert outcome.grade == recorded_grades()[row.id], (
        f"{row.promise} is {outcome.grade}: {outcome.line}\n{outcome.output}\n"
        "if that is better, record it: python -m benchmarks.promises --quick --json benchmarks/baselines/promises.json"
    )
