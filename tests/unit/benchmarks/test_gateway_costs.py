"""The processor time of a request and of a token are told apart by replies of two lengths."""

from __future__ import annotations

import pytest

from benchmarks.gateway import Run, cost_figures

REQUEST_US, TOKEN_US = 2000.0, 30.0


def run(requests: int, length: int) -> Run:
    tokens, seconds = requests * length, 4.0
    return Run(
        totals=[1.0] * requests,
        firsts=[],
        overheads=[],
        first_overheads=[],
        health=[],
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        cpu_us_per_token=REQUEST_US / length + TOKEN_US,
        load_average=0.0,
    )


def test_request_and_token_are_told_apart() -> None:
    found = cost_figures({64: [run(100, 50), run(60, 50), run(80, 50)], 512: [run(20, 400)]})
    assert found["tokens_per_reply"] == [50.0, 400.0]
    assert found["cpu_us_per_token"] == [70.0, 35.0]
    assert found["of_a_token_us"] == pytest.approx(TOKEN_US)
    assert found["of_a_request_ms"] == pytest.approx(REQUEST_US / 1e3)
