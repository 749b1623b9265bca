"""The receiver of the push benchmark runs on a GPU that has a number: torch accepts no other as the current one."""

from __future__ import annotations

import pytest

from benchmarks.weight_receiver import numbered


@pytest.mark.parametrize(("given", "found"), [("cuda", "cuda:0"), ("cuda:1", "cuda:1"), ("cpu", "cpu")])
def test_the_device_of_a_receiver_has_a_number(given: str, found: str) -> None:
    assert str(numbered(given)) == found
