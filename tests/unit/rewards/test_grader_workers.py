"""Grader workers: what hangs or dies costs its own grade and nothing else."""

from __future__ import annotations

import asyncio

import psutil
import pytest

from slime.rollout.metrics import grader_problems
from slime.rollout.rm_hub import async_rm, workers
from slime.rollout.rm_hub.workers import GraderPool, GraderTimeout
from slime.utils.types import Sample
from tests.unit.rewards.test_graders import options

SECONDS, AMPLE_SECONDS = 0.5, 60.0
ENDLESS = "9^{9^{9^{9}}}"


def grader_processes() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if workers.MODULE in " ".join(command_line(child))]


def command_line(process: psutil.Process) -> list[str]:
    """Its words; none once it has ended, also when nobody has asked for its exit status yet."""
    try:
        return process.cmdline()
    except (psutil.ZombieProcess, psutil.NoSuchProcess):
        return []


async def test_a_grade_that_hangs_costs_itself_only(monkeypatch: pytest.MonkeyPatch) -> None:
    others = grader_processes()
    pool = GraderPool(1, AMPLE_SECONDS)
    monkeypatch.setattr("slime.rollout.rm_hub.math.pool", lambda: pool)
    with pytest.raises(RuntimeError, match="AttributeError"):
        await pool.grade("no_such_function")

    pool._seconds = SECONDS
    sample = Sample(response=rf"\boxed{{{ENDLESS}}}", label="36")
    grading = asyncio.create_task(async_rm(options("math"), sample))
    ticks = 0
    while not grading.done():
        ticks += 1
        await asyncio.sleep(0.001)
    assert ticks >= 3, "the event loop stood still"
    assert grading.result() == 0.0
    assert grader_problems([sample]) == {"timeout": 1}

    pool._seconds = AMPLE_SECONDS
    assert await pool.grade("equal_answers", answer="36", labels=["36"]) is True
    mine = [process for process in grader_processes() if process not in others]
    assert len(mine) == 1
    mine[0].kill()
    with pytest.raises(GraderTimeout, match="equal_answers"):
        await pool.grade("equal_answers", answer="36", labels=["36"])
    pool.close()
    assert not [process for process in grader_processes() if process not in others]
