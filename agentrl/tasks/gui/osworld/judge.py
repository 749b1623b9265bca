"""Judges a task: the steps after its end, then each getter and metric."""

from __future__ import annotations

import asyncio

from agentrl.protocol import Verdict
from agentrl.tasks.gui.osworld.getters import read
from agentrl.tasks.gui.osworld.metrics import METRICS
from agentrl.tasks.gui.osworld.setup import Files, Supplies, set_up
from agentrl.tasks.gui.osworld.task_file import INFEASIBLE, Check, TaskFile, checks_of
from agentrl.tasks.gui.osworld.vm import VirtualMachine


async def judge(vm: VirtualMachine, task: TaskFile, supplies: Supplies, status: str | None) -> Verdict:
    """Return the verdict on a machine.

    Args:
        vm: as the agent left it.
        task: of the episode.
        supplies: of the task's steps and getters.
        status: with which the agent ended; None if it did not.

    Raises:
        InfraError: the machine does not answer, or the task's own files are missing.
    """
    checks = checks_of(task.evaluator)
    gave_up = status == "failure"
    if gave_up and not any(check.metric == INFEASIBLE for check in checks):
        return Verdict(status="task_failed", score=0.0, detail="the agent gave up")
    await set_up(vm, task.evaluator.postconfig, supplies)
    scores: list[float] = []
    for check in checks:
        scores.append(float(gave_up) if check.metric == INFEASIBLE else await _score(vm, check, supplies.files))
    together = sum(scores) / len(scores) if all(scores) else 0.0
    score = together if task.evaluator.conj == "and" else max(scores)
    detail = "; ".join(f"{check.metric}: {each:g}" for check, each in zip(checks, scores, strict=True))
    return Verdict(
        status="ok" if score >= 1 else "task_failed",
        score=score,
        passed=sum(each >= 1 for each in scores),
        total=len(scores),
        detail=detail,
    )


async def _score(vm: VirtualMachine, check: Check, files: Files) -> float:
    metric, asked = METRICS[check.metric], check.expected
    assert asked is not None
    assert check.result is not None
    expected = metric.rules(asked["rules"]) if asked["type"] == "rule" else await read(vm, files, asked)
    result = await read(vm, files, check.result)
    return await asyncio.to_thread(metric.score, result, expected, metric.options.model_validate(check.options))
