"""A desktop as a `agentrl.tasks.gui.computer.Computer`: display, program and pyautogui live and end in one sandbox.

Guarantees: the display is private to the sandbox, which sees no display of this machine. An action is sent once, and a look
shows all that it changed. Any failure is an InfraError, after which the desktop is gone.
"""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path
from typing import Any

from agentrl.exceptions import InfraError
from agentrl.processes import Processes
from agentrl.protocol import JsonObject
from agentrl.sandbox.interface import Limits, Mount, Provider, SandboxSpec
from agentrl.sandbox.streams import SandboxStream
from agentrl.tasks.gui.actions import Action, Point
from agentrl.tasks.gui.computer import Look
from agentrl.tasks.gui.dom import Element, as_text, element_of, numbered
from agentrl.tasks.gui.orders import INSIDE, order_of
from groundwork.exceptions import ConfigError

ROOT = Path(__file__).resolve().parents[4]
SETUP = ROOT / "scripts" / "setup_desktop.sh"
INSTALLED = ROOT / ".cache" / "desktop"
PROGRAMS, PACKAGES = "/opt/desktop/programs", "/opt/desktop/packages"
"""Where the sandbox has the programs and pyautogui."""
LIMITS = Limits(memory_mib=512, cpus=1.0, processes=64, disk_mib=64)
SIZE = (640, 480)
ANSWER_SECONDS = 60.0
"""After which a desktop that does not answer is gone."""
MAX_SECONDS = 7200.0


def missing() -> str | None:
    """Return what a desktop lacks on this machine and what to type; None if all of it is there."""
    checked = subprocess.run([SETUP, "--check"], check=False, capture_output=True, text=True)
    if checked.returncode == 0:
        return None
    return f"{checked.stderr.strip()}, which desktop tasks need; run bash scripts/setup_desktop.sh"


@cache
def installed() -> Path:
    """Return the folder of pyautogui and what it needs; once it was there, it is not looked for again.

    Raises:
        ConfigError: something is missing on this machine.
    """
    if lacks := missing():
        raise ConfigError(f"not found on this machine: {lacks}")
    return next(INSTALLED.glob("lib/python3*/site-packages"))


class Desktop:
    """One desktop; make it with `open`.

    Attributes:
        size: width and height of the screen, and of its pictures.
        state: what the program said of itself after the last order.
        elements: of the last look.
    """

    def __init__(self, stream: SandboxStream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.size: tuple[int, int] = SIZE
        self.picture: tuple[int, int] = SIZE
        self.state: JsonObject = {}
        self.elements: list[Element] = []
        self._stream, self._reader, self._writer = stream, reader, writer
        self._closing = AsyncExitStack()

    @classmethod
    async def open(cls, provider: Provider, processes: Processes, window: JsonObject) -> Desktop:
        """Start a desktop with a window of `agentrl.tasks.gui.inside.window` on it.

        Raises:
            InfraError: it does not start, or Xvfb or pyautogui is missing.
        """
        try:
            mounts = [Mount(INSIDE, PROGRAMS), Mount(installed(), PACKAGES)]
        except ConfigError as error:
            raise InfraError(str(error), code="no_desktop") from error
        async with AsyncExitStack() as closing:
            stream = SandboxStream(0, processes.pool)
            closing.push_async_callback(stream.close)
            spec = SandboxSpec(limits=LIMITS, mounts=mounts, doors=[await stream.open()])
            sandbox = await provider.start(spec, processes)
            closing.push_async_callback(sandbox.stop)
            settings = {"width": SIZE[0], "height": SIZE[1], "packages": PACKAGES, "program": "window.py"}
            argv = ["python3", "-I", "-S", "-B", f"{PROGRAMS}/screen.py", json.dumps({**settings, "window": window})]
            desktop = cls(stream, *await stream.start(sandbox, argv, {}, MAX_SECONDS))
            await desktop.ask(None)
            desktop._closing = closing.pop_all()
            return desktop
        raise AssertionError  # an exit stack of these callbacks hides nothing

    async def look(self, *, png: bool, text: bool) -> Look:
        """See `agentrl.tasks.gui.computer.Computer`."""
        answer = await self.ask(None, png=png)
        return Look(base64.b64decode(answer["png"]) if png else None, as_text(self.elements) if text else "")

    async def act(self, action: Action, point: Point | None, start: Point | None) -> None:
        """See `agentrl.tasks.gui.computer.Computer`."""
        if action.name == "wait":
            await asyncio.sleep(action.seconds)
            return
        if action.element is not None:
            target = numbered(self.elements, action.element)
            point = target.x, target.y
        await self.ask(order_of(action, point, start))

    async def ask(self, order: JsonObject | None, *, png: bool = False) -> dict[str, Any]:
        """Send an order, or none, and return the answer.

        Raises:
            InfraError: the desktop is gone.
        """
        try:
            self._writer.write(json.dumps({"order": order, "png": png}).encode() + b"\n")
            async with asyncio.timeout(ANSWER_SECONDS):
                line = await self._reader.readline()
        except (OSError, TimeoutError) as error:
            why = f"no answer within {ANSWER_SECONDS:g} s" if isinstance(error, TimeoutError) else str(error)
            raise InfraError(f"the desktop is gone: {why}", code="desktop_lost") from error
        if not line.endswith(b"\n"):
            raise InfraError(f"the desktop is gone: {await self._stream.ended()}", code="desktop_lost")
        answer = json.loads(line)
        self.state = answer["state"]
        self.elements = [element_of(item) for item in answer["state"]["elements"]]
        return answer

    async def close(self) -> None:
        """End the desktop; a second call does nothing."""
        await self._closing.aclose()
