"""A soak passes if nothing is left and memory levels off, and says what is left or grows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.env_parts.soak import Rest, held
from benchmarks.env_parts.traces import Traces

CLEAN = Traces(processes=0, control_groups=0, temporary_files=0, ledger_rows=0)
FIRST = Rest(leases=32, traces=CLEAN, open_files=11, tasks=7, blocks=300_000, memory_kib=60_000)


def rests(*, blocks: float = 0.0, memory_kib: float = 0.0, **last: Any) -> list[Rest]:
    """Return eleven rests, 500 leases apart, with growth per lease; ``last`` changes the last one."""
    found = [
        replace(
            FIRST,
            leases=FIRST.leases + leases,
            blocks=FIRST.blocks + round(blocks * leases) + 40 * (leases // 500 % 2),
            memory_kib=FIRST.memory_kib + round(memory_kib * leases),
        )
        for leases in range(0, 5001, 500)
    ]
    return [*found[:-1], replace(found[-1], **last)]


def test_what_is_level_passes() -> None:
    found = held(rests())
    assert (found["left"], found["grew"]) == ({}, [])


def test_caches_that_fill_in_the_first_half_pass() -> None:
    early = [replace(each, blocks=200_000, memory_kib=40_000) for each in rests()[:5]]
    assert held([*early, *rests()[5:]])["grew"] == []


@pytest.mark.parametrize("name", ["processes", "control_groups", "temporary_files", "ledger_rows"])
def test_one_trace_that_is_left_is_named(name: str) -> None:
    assert held(rests(traces=replace(CLEAN, **{name: 1})))["left"] == {name: 1}


@pytest.mark.parametrize(("name", "level"), [("open_files", 11), ("tasks", 7)])
def test_one_more_file_or_task_is_named(name: str, level: int) -> None:
    assert held(rests(**{name: level + 1}))["left"] == {name: 1}


@pytest.mark.parametrize(("growth", "grew"), [(0.5, []), (2.0, ["blocks"])])
def test_blocks_that_every_episode_leaves_are_named(growth: float, grew: list[str]) -> None:
    found = held(rests(blocks=growth))
    assert found["grew"] == grew
    assert found["blocks_per_episode"]["slope"] == pytest.approx(growth, abs=0.05)


@pytest.mark.parametrize(("growth", "grew"), [(1.0, []), (4.0, ["memory_kib"])])
def test_memory_that_every_episode_takes_is_named(growth: float, grew: list[str]) -> None:
    found = held(rests(memory_kib=growth))
    assert found["grew"] == grew
    assert found["memory_kib_per_episode"] == {"slope": pytest.approx(growth), "standard_error": 0}
