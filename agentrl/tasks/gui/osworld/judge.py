"""Judges a task: the steps after its end, then each getter and metric.

A getter returns text, bytes, JSON, or None if there is nothing. Guarantee: the machine's answers are data; nothing of them
runs here. A machine that does not answer is an InfraError, never a result.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agentrl.exceptions import InfraError
from agentrl.protocol import Verdict
from agentrl.tasks.gui.osworld.metrics import METRICS
from agentrl.tasks.gui.osworld.setup import Files, Supplies, set_up
from agentrl.tasks.gui.osworld.shapes import GETTER_SHAPES, Directory, File, Launch, Nothing, Tabs, VmFile
from agentrl.tasks.gui.osworld.task_file import INFEASIBLE, Check, TaskFile, checks_of
from agentrl.tasks.gui.osworld.vm import VirtualMachine

Getter = Callable[[VirtualMachine, Files, Any], Awaitable[Any]]
LIST = "import json, os, sys; print(json.dumps(sorted(os.listdir(sys.argv[1])))) if os.path.isdir(sys.argv[1]) else print('null')"
TABS = (
    "import json, sys, urllib.request; said = urllib.request.urlopen('http://127.0.0.1:%d/json/list' % int(sys.argv[1]), timeout=20);"
    "print(json.dumps([{'title': t.get('title'), 'url': t.get('url')} for t in json.load(said) if t.get('type') == 'page']))"
)


async def _vm_file(vm: VirtualMachine, files: Files, given: VmFile) -> Any:
    found = [await vm.read_file(path) for path in given.given]
    return found if len(found) > 1 else found[0]


async def _cloud_file(vm: VirtualMachine, files: Files, given: File) -> Any:
    found = [await asyncio.to_thread(files.read, path) for path in given.given]
    return found if len(found) > 1 else found[0]


async def _command_line(vm: VirtualMachine, files: Files, given: Launch) -> str:
    return (await vm.execute(given.command, shell=given.shell)).output


async def _command_error(vm: VirtualMachine, files: Files, given: Launch) -> str:
    return (await vm.execute(given.command, shell=given.shell)).error


async def _terminal(vm: VirtualMachine, files: Files, given: Nothing) -> str:
    return await vm.terminal()


async def _accessibility(vm: VirtualMachine, files: Files, given: Nothing) -> str:
    return await vm.accessibility()


async def _screen_size(vm: VirtualMachine, files: Files, given: Nothing) -> dict[str, int]:
    return {"width": vm.size[0], "height": vm.size[1]}


async def _directory(vm: VirtualMachine, files: Files, given: Directory) -> Any:
    return await _printed(vm, ["python3", "-c", LIST, given.path])


async def _tabs(vm: VirtualMachine, files: Files, given: Tabs) -> Any:
    return await _printed(vm, ["python3", "-c", TABS, str(given.port)])


async def _printed(vm: VirtualMachine, command: list[str]) -> Any:
    """Return the JSON that a program of ours prints; None if it fails, as it does if its object is missing."""
    ran = await vm.execute(command)
    if ran.status:
        return None
    try:
        return json.loads(ran.output)
    except ValueError as error:
        raise InfraError("the machine printed no JSON", code="vm_lost") from error


GETTERS: dict[str, Getter] = {
    "vm_file": _vm_file,
    "cloud_file": _cloud_file,
    "vm_command_line": _command_line,
    "vm_command_error": _command_error,
    "vm_terminal_output": _terminal,
    "accessibility_tree": _accessibility,
    "vm_screen_size": _screen_size,
    "list_directory": _directory,
    "open_tabs_info": _tabs,
}


async def read(vm: VirtualMachine, files: Files, asked: Mapping[str, Any]) -> Any:
    """Return what a getter of a task finds.

    Raises:
        InfraError: the machine does not answer, or a file that the task names by URL is missing.
    """
    given = {key: value for key, value in asked.items() if key != "type"}
    return await GETTERS[asked["type"]](vm, files, GETTER_SHAPES[asked["type"]].model_validate(given))


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
    detail = "; ".join(f"{check.metric}: {item:g}" for check, item in zip(checks, scores, strict=True))
    return Verdict(
        status="ok" if score >= 1 else "task_failed",
        score=score,
        passed=sum(item >= 1 for item in scores),
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
