"""OSWorld's tasks as an environment: a machine for each lease, reverted before each episode.

A task is judged by the steps after its end, then by each getter and metric. A getter returns text, bytes, JSON, or None if there is
nothing. The machine's answers are data; nothing of them runs here. A machine that does not answer is an InfraError, never a result.

A machine is prepared by the steps of ``config`` and ``postconfig``. Files of the internet come from a folder here, so that a run
needs no network and always finds the same. A step that the machine refuses is an InfraError; nothing goes on after it. As in
OSWorld, a command's status does not count unless its ``until`` says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from agentrl.environment import Task, Weight
from agentrl.exceptions import InfraError
from agentrl.processes import Processes
from agentrl.protocol import Verdict
from agentrl.tasks.gui.computer import Computer
from agentrl.tasks.gui.environment import GuiEnvironment
from agentrl.tasks.gui.osworld.metrics import METRICS
from agentrl.tasks.gui.osworld.providers import Machine, VmProvider, provider_of
from agentrl.tasks.gui.osworld.settings import VmSettings
from agentrl.tasks.gui.osworld.shapes import (
    GETTER_SHAPES,
    PLACEHOLDERS,
    STEP_SHAPES,
    Directory,
    Download,
    Execute,
    File,
    Launch,
    Nothing,
    Shape,
    Sleep,
    Tabs,
    Upload,
    VmFile,
)
from agentrl.tasks.gui.osworld.source import load, pool_files
from agentrl.tasks.gui.osworld.task_file import INFEASIBLE, Check, Step, TaskFile, checks_of
from agentrl.tasks.gui.osworld.vm import SETUP_SECONDS, VirtualMachine

logger = logging.getLogger(__name__)
BETWEEN_SECONDS = 0.3
MAX_REPEATED_SECONDS = 600.0
"""Seconds between two runs of a command that has an ``until``, and for all of them."""


class Files:
    """A folder with the files that tasks name by URL, each as ``SHA256-OF-URL`` or by the URL's last part."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def read(self, url: str) -> bytes:
        """Return a file.

        Raises:
            InfraError: the folder does not have it; says under which name it looked.
        """
        digest = hashlib.sha256(url.encode()).hexdigest()
        name = Path(urlsplit(url).path).name
        places = [self._folder / item for item in (digest, name) if item] if self._folder else []
        result = next((place for place in places if place.is_file()), None)
        if result is None:
            raise InfraError(
                f"the file of {url} is not here; put it into GUI_CACHE_DIR as {digest} or {name}", code="no_file"
            )
        return result.read_bytes()


@dataclass(frozen=True)
class Supplies:
    """What a task's steps take from this side: files, and the password of the machine's user."""

    files: Files
    password: str | None = field(default=None, repr=False)

    def filled(self, command: str | list[str], size: tuple[int, int]) -> str | list[str]:
        """Return a command with its placeholders replaced, for a screen of a width and height."""
        if isinstance(command, list):
            return [str(self.filled(item, size)) for item in command]
        width, height = size
        for name, value in zip(PLACEHOLDERS, (self.password, width, height, width // 2, height // 2), strict=True):
            command = command.replace(name, str(value))
        return command

    def hidden(self, text: str) -> str:
        """Return text without the password."""
        return text.replace(self.password, "***") if self.password else text


async def _download(vm: VirtualMachine, supplies: Supplies, given: Any) -> None:
    assert isinstance(given, Download)
    for file in given.files:
        await vm.upload(file.path, await asyncio.to_thread(supplies.files.read, file.url))


async def _upload(vm: VirtualMachine, supplies: Supplies, given: Any) -> None:
    assert isinstance(given, Upload)
    for file in given.files:
        await vm.upload(file.path, await asyncio.to_thread(supplies.files.read, file.local_path))


async def _execute(vm: VirtualMachine, supplies: Supplies, given: Any) -> None:
    """Run a command, again and again while its ``until`` is not met; each run acts anew, as the task wants it."""
    assert isinstance(given, Execute)
    command = supplies.filled(given.command, vm.size)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + MAX_REPEATED_SECONDS
    while True:
        ran = await vm.execute(command, shell=given.shell, seconds=SETUP_SECONDS)
        if given.until.met(ran.status, ran.output, ran.error):
            break
        if loop.time() >= deadline:
            said = f"status {ran.status}, {supplies.hidden(ran.error[-300:])}"
            raise InfraError(
                f"the command did not reach its until in {MAX_REPEATED_SECONDS:g} s: {said}", code="reset_failed"
            )
        await asyncio.sleep(BETWEEN_SECONDS)
    if ran.status:
        logger.warning("a command of the set-up ended with %d: %s", ran.status, supplies.hidden(ran.error[-300:]))


async def _sleep(vm: VirtualMachine, supplies: Supplies, given: Any) -> None:
    assert isinstance(given, Sleep)
    await asyncio.sleep(given.seconds)


def _route(name: str) -> Callable[[VirtualMachine, Supplies, Any], Awaitable[None]]:
    async def call(vm: VirtualMachine, supplies: Supplies, given: Shape) -> None:
        await vm.setup(name, given.model_dump())

    return call


STEPS: dict[str, Callable[[VirtualMachine, Supplies, Any], Awaitable[None]]] = {
    "download": _download,
    "upload_file": _upload,
    "execute": _execute,
    "command": _execute,
    "sleep": _sleep,
    "launch": _route("launch"),
    "open": _route("open_file"),
    "activate_window": _route("activate_window"),
    "close_window": _route("close_window"),
    "change_wallpaper": _route("change_wallpaper"),
}


async def set_up(vm: VirtualMachine, steps: Sequence[Step], supplies: Supplies) -> None:
    """Carry out steps in order.

    Raises:
        InfraError: one failed; the message has its number and type.
    """
    for number, step in enumerate(steps, start=1):
        try:
            await STEPS[step.type](vm, supplies, STEP_SHAPES[step.type].model_validate(step.parameters))
        except InfraError as error:
            said = f"the reset failed at step {number}, {step.type}: {error.message}"
            raise InfraError(said, code="reset_failed") from error


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


POLL_SECONDS = 1.0


class OsWorldEnvironment(GuiEnvironment):
    """See the module."""

    provider = None
    """No program of the agent runs outside of the machine."""
    swept: ClassVar[set[str]] = set()
    """Pools of this process whose leftovers have ended."""
    sweeping: ClassVar[asyncio.Lock] = asyncio.Lock()

    def __init__(self, processes: Processes) -> None:
        super().__init__(processes)
        self.vm_settings = VmSettings.from_env()
        self._machines: VmProvider | None = None
        self._machine: Machine | None = None
        self._vm: VirtualMachine | None = None
        self._task: TaskFile | None = None
        cache = self.vm_settings.cache_dir
        self._supplies = Supplies(Files(Path(cache) if cache else None), self.vm_settings.password)

    @classmethod
    def tasks(cls) -> Iterable[Task]:
        """Return the tasks that the meta files list, each checked; without a meta file, all of the folder."""
        settings = VmSettings.from_env()
        weight = Weight(settings.memory_mib, float(settings.cpus))
        return [Task(name, {"path": str(path)}, weight) for name, path in pool_files(settings).items()]

    async def begin(self, task: Task, seed: int) -> tuple[Computer, str]:
        """See `GuiEnvironment`."""
        self._task = load(Path(str(task.data["path"])), self.vm_settings.password is not None)
        await self._disconnect()
        self._machine = await self._fresh(self._task.snapshot)
        self._vm = vm = VirtualMachine(self._machine.url)
        await self._booted(vm)
        await set_up(vm, self._task.config, self._supplies)
        return vm, self._task.instruction

    async def over(self) -> bool:
        """See `GuiEnvironment`; only the agent ends it."""
        return False

    async def judge(self) -> Verdict:
        """See `GuiEnvironment`."""
        assert self._vm is not None
        assert self._task is not None
        return await judge(self._vm, self._task, self._supplies, self.status)

    async def close(self) -> None:
        """End the machine."""
        await self._disconnect()
        if self._machine is not None and self._machines is not None:
            await self._machines.stop(self.processes, self._machine)
        self._machine = None

    async def _fresh(self, snapshot: str) -> Machine:
        """Return a machine as it was at its start."""
        machines = self._machines = self._machines or provider_of(self.vm_settings)
        async with self.sweeping:
            if self.processes.pool not in self.swept:
                await machines.sweep(self.processes)
                self.swept.add(self.processes.pool)
        if self._machine is None:
            return await machines.start(self.processes, snapshot)
        old, self._machine = self._machine, None
        try:
            return await machines.revert(self.processes, old, snapshot)
        except InfraError:
            with suppress(InfraError):
                await machines.stop(self.processes, old)
            raise

    async def _booted(self, vm: VirtualMachine) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.vm_settings.boot_seconds
        while True:
            try:
                return await vm.begin()
            except InfraError as error:
                if loop.time() > deadline:
                    said = f"the reset failed: the machine does not answer: {error.message}"
                    raise InfraError(said, code="reset_failed") from error
            await asyncio.sleep(POLL_SECONDS)

    async def _disconnect(self) -> None:
        if self._vm is not None:
            await self._vm.close()
            self._vm = None
