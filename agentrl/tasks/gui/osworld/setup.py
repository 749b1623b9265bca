"""Prepares a machine for a task: the steps of ``config`` and ``postconfig``.

Files of the internet come from a folder here, so that a run needs no network and always finds the same. Guarantee: a step
that fails is an InfraError; nothing goes on after it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentrl.exceptions import InfraError
from agentrl.tasks.gui.osworld.task_file import Step
from agentrl.tasks.gui.osworld.vm import SETUP_S, VirtualMachine

MOST_SLEEP_S = 120.0


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
        places = [self._folder / each for each in (digest, name) if each] if self._folder else []
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise InfraError(
                f"the file of {url} is not here; put it into GUI_CACHE_DIR as {digest} or {name}", code="no_file"
            )
        return found.read_bytes()


async def _download(vm: VirtualMachine, files: Files, given: dict[str, Any]) -> None:
    for each in given["files"]:
        await vm.upload(each["path"], await asyncio.to_thread(files.read, each["url"]))


async def _upload(vm: VirtualMachine, files: Files, given: dict[str, Any]) -> None:
    for each in given["files"]:
        await vm.upload(each["path"], await asyncio.to_thread(files.read, each["local_path"]))


async def _execute(vm: VirtualMachine, files: Files, given: dict[str, Any]) -> None:
    ran = await vm.execute(given["command"], shell=bool(given.get("shell", False)), seconds=SETUP_S)
    if ran.status:
        raise InfraError(f"a command of the set-up failed: {ran.error[-300:]}", code="reset_failed")


async def _sleep(vm: VirtualMachine, files: Files, given: dict[str, Any]) -> None:
    await asyncio.sleep(min(float(given["seconds"]), MOST_SLEEP_S))


def _route(name: str) -> Callable[[VirtualMachine, Files, dict[str, Any]], Awaitable[None]]:
    async def call(vm: VirtualMachine, files: Files, given: dict[str, Any]) -> None:
        await vm.setup(name, given)

    return call


STEPS: dict[str, Callable[[VirtualMachine, Files, dict[str, Any]], Awaitable[None]]] = {
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


async def set_up(vm: VirtualMachine, steps: Sequence[Step], files: Files) -> None:
    """Carry out steps in order.

    Raises:
        InfraError: one failed; the message has its number and type.
    """
    for number, step in enumerate(steps, start=1):
        try:
            await STEPS[step.type](vm, files, step.parameters)
        except InfraError as error:
            said = f"the reset failed at step {number}, {step.type}: {error.message}"
            raise InfraError(said, code="reset_failed") from error
        except (KeyError, TypeError, ValueError) as error:
            said = f"the reset failed at step {number}, {step.type}: its parameters lack or spoil {error}"
            raise InfraError(said, code="reset_failed") from error
