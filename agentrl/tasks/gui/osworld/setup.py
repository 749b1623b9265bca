"""Prepares a machine for a task: the steps of ``config`` and ``postconfig``.

Files of the internet come from a folder here, so that a run needs no network and always finds the same. Guarantee: a step
that the machine refuses is an InfraError; nothing goes on after it. As in OSWorld, a command's status does not count unless
its ``until`` says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentrl.exceptions import InfraError
from agentrl.tasks.gui.osworld.shapes import PLACEHOLDERS, STEP_SHAPES, Download, Execute, Shape, Sleep, Upload
from agentrl.tasks.gui.osworld.task_file import Step
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
