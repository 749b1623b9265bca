"""What holds for every unit test, beside the fixtures of all tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _nothing_tells_of_a_start_afterwards() -> Iterator[None]:
    """Fail a test that leaves the thread of `StartWatch`: its lines would be in what later tests of this process print."""
    yield
    if any(thread.name == "start-watch" for thread in threading.enumerate()):
        pytest.fail("the run that this test started still prints its timeline; close its resources")
