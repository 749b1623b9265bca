"""What holds for every unit test, beside the fixtures of all tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from slime.utils.run_logs import ended_training_log


@pytest.fixture(autouse=True)
def _nothing_tells_of_a_start_afterwards() -> Iterator[None]:
    """Fail a test that leaves the thread of `StartWatch`: its lines would be in what later tests of this process print."""
    yield
    if any(thread.name == "start-watch" for thread in threading.enumerate()):
        pytest.fail("the run that this test started still prints its timeline; close its resources")


@pytest.fixture(autouse=True)
def _nothing_is_logged_for_a_run_afterwards() -> Iterator[None]:
    """End the training log of a run that a test started: it would take the records of later tests of this process."""
    with ended_training_log():
        yield
