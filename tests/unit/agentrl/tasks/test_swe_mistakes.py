"""Every mistake of the generated repositories is real: its tests fail with it and pass without it, and the others always pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.tasks.swe.generate import draft_of
from tests.helpers.swe_instances import of_each_mistake, ran

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", of_each_mistake())
def test_the_mistake_breaks_what_it_says(name: str, tmp_path: Path) -> None:
    draft = draft_of(name)
    every = {*draft.fail_to_pass(), *draft.pass_to_pass()}
    status, results = ran(tmp_path / "working", draft.working(), draft)
    assert results.keys() == every
    assert {test for test, result in results.items() if result != "PASSED"} == set()
    assert status == 0
    status, results = ran(tmp_path / "broken", draft.broken(), draft)
    assert results.keys() == every
    assert {test for test, result in results.items() if result != "PASSED"} == set(draft.fail_to_pass())
    assert status == 1
