"""The verdict of the loss benchmark: the slowest top-K case decides, and memory counts as much as time."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.losses import DISTILLATION_CASES, POLICY_CASES, TIMES_FASTER, parsed, sizes_of, verdict


def cases(faster: dict[str, float], ours: int = 100, plain: int = 400) -> list[dict[str, Any]]:
    memory = {"ours": {"peak_bytes_per_token": ours}, "plain": {"peak_bytes_per_token": plain}}
    return [{"case": "gspo", "times_faster": 1.1}] + [
        {"case": name, "times_faster": times, **memory} for name, times in faster.items()
    ]


@pytest.mark.parametrize(
    ("slowest", "ours", "holds"), [(20.0, 100, True), (19.9, 100, False), (80.0, 400, False), (80.0, 399, True)]
)
def test_time_and_memory_decide(slowest: float, ours: int, holds: bool) -> None:
    first, second = DISTILLATION_CASES
    found = verdict(cases({first: 300.0, second: slowest}, ours), TIMES_FASTER)
    assert (found["holds"], found["times_faster"]) == (holds, slowest)
    assert found["share_of_memory"] == round(ours / 400, 3)
    assert "20 times" in found["claim"]


def test_only_top_k_cases_have_fewer_rows_for_the_loop_beside_them() -> None:
    """A chunk stays the same share of the rows."""
    for kind, expected in (("cpu", (256, 8)), ("cuda", (1024, 128))):
        options = parsed(["--device", kind])
        for name in POLICY_CASES:
            assert sizes_of(name, options) is options
        for name in DISTILLATION_CASES:
            found = sizes_of(name, options)
            assert (found.rows, found.chunk, found.width) == (*expected, options.width)
