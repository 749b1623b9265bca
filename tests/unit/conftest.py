"""What holds for every unit test, beside the fixtures of all tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from slime.utils.run_logs import ended_training_log


# A hook, because a fixture that every test has costs each of thousands some tenths of a millisecond.
@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Fail a test that leaves what a run that it started would say in what later tests of this process print.

    That is the thread of `StartWatch`, which prints a timeline. The training log, which would take their records, is ended.
    """
    with ended_training_log():
        result = yield
    if any(thread.name == "start-watch" for thread in threading.enumerate()):
        pytest.fail("the run that this test started still prints its timeline; close its resources")
    return result
