"""Judges a task: the steps after its end, then each getter and metric."""

from __future__ import annotations

import asyncio
from typing import Any

from agentrl.exceptions import InfraError
from agentrl.protocol import Verdict
from agentrl.tasks.gui.osworld.getters import GETTERS
from agentrl.tasks.gui.osworld.metrics import METRICS
from agentrl.tasks.gui.osworld.setup import Files, set_up
from agentrl.tasks.gui.osworld.task_file import INFEASIBLE, Check, TaskFile, checks_of
from agentrl.tasks.gui.osworld.vm import VirtualMachine


async def judge(vm: VirtualMachine, task: TaskFile, files: Files, status: str | None) -> Verdict:
    """Return the verdict on a machine.

    Args:
        vm: as the agent left it.
        task: of the episode.
        files: that the task names by URL.
        status: with which the agent ended; None if it did not.

    Raises:
        InfraError: the machine does not answer, or the task's own files are missing or do not fit its metric.
    """
    checks = checks_of(task.evaluator)
    gave_up = status == "failure"
    if gave_up and not any(check.metric == INFEASIBLE for check in checks):
        return Verdict(status="task_failed", score=0.0, detail="the agent gave up")
    await set_up(vm, task.evaluator.postconfig, files)
    scores: list[float] = []
    for check in checks:
        scores.append(float(gave_up) if check.metric == INFEASIBLE else await _score(vm, check, files))
    score = min(scores) if task.evaluator.conj == "and" else max(scores)
    detail = "; ".join(f"{check.metric}: {each:g}" for check, each in zip(checks, scores, strict=True))
    return Verdict(
        status="ok" if score >= 1 else "task_failed",
        score=score,
        passed=sum(each >= 1 for each in scores),
        total=len(scores),
        detail=detail,
    )


async def _score(vm: VirtualMachine, check: Check, files: Files) -> float:
    async def got(asked: dict[str, Any] | None) -> Any:
        if asked is None:
            return None
        try:
            return await GETTERS[asked["type"]](vm, files, asked)
        except (KeyError, TypeError, ValueError) as error:
            raise InfraError(f"the getter {asked['type']} lacks {error}; correct the task", code="bad_task") from error

    expected, result = await got(check.expected), await got(check.result)
    try:
        return await asyncio.to_thread(METRICS[check.metric], result, expected, check.options)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        said = f"the metric {check.metric} cannot compare: {type(error).__name__}: {error}; correct the task"
        raise InfraError(said, code="bad_task") from error
