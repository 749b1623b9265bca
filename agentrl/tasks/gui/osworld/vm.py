"""The HTTP server inside a virtual machine of OSWorld, and the machine as a `Computer`.

Guarantees: a call that acts is sent once, because a second click is another click. Calls that only look are tried again.
What the policy writes reaches the machine as JSON that a fixed program reads, never as code. Every failure is an InfraError.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from agentrl.exceptions import InfraError
from agentrl.tasks.gui.actions import Action, Point
from agentrl.tasks.gui.computer import Look
from agentrl.tasks.gui.orders import INSIDE, order_of

LOOKS, LOOK_SECONDS, BETWEEN_SECONDS = 3, 30.0, 1.0
"""Tries of a call that only looks, its seconds, and the seconds between two."""
ACT_SECONDS, SETUP_SECONDS = 90.0, 600.0
MAX_BYTES = 64 << 20
PROGRAM = f"""
{(INSIDE / "hands.py").read_text()}
import json, sys
import pyautogui
prepare(pyautogui, pause=0.02)
def paste(text):
    import pyperclip
    pyperclip.copy(text)
    pyautogui.hotkey("ctrl", "v")
carry_out(json.loads(sys.argv[1]), pyautogui, paste, calm=1)
"""


@dataclass(frozen=True)
class Ran:
    """What a command in the machine did."""

    output: str
    error: str
    status: int


class VirtualMachine:
    """One machine with OSWorld's server; see `agentrl.tasks.gui.computer.Computer`."""

    def __init__(self, url: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """Prepare for the server at ``url``; `begin` looks at it."""
        self.size = self.picture = (0, 0)
        self._client = httpx.AsyncClient(base_url=url, transport=transport, trust_env=False, timeout=LOOK_SECONDS)

    async def begin(self) -> None:
        """Read the size of the screen.

        Raises:
            InfraError: the server does not answer.
        """
        answer = await self._json("POST", "/screen_size", again=True)
        self.size = self.picture = int(answer["width"]), int(answer["height"])

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def look(self, *, png: bool, text: bool) -> Look:
        """See `Computer`; the text is the accessibility tree."""
        picture = (await self._call("GET", "/screenshot", again=True)).content if png else None
        return Look(picture, await self.accessibility() if text else "")

    async def act(self, action: Action, point: Point | None, start: Point | None) -> None:
        """See `Computer`."""
        if action.name == "wait":
            await asyncio.sleep(action.seconds)
            return
        said = json.dumps(order_of(action, point, start))
        ran = await self.execute(["python3", "-c", PROGRAM, said])
        if ran.status:
            raise InfraError(f"the machine could not act: {ran.error[-500:]}", code="vm_action")

    async def execute(self, command: Sequence[str] | str, *, shell: bool = False, seconds: float = ACT_SECONDS) -> Ran:
        """Run a command in the machine, once."""
        body = {"command": command if isinstance(command, str) else list(command), "shell": shell}
        answer = await self._json("POST", "/execute", json=body, timeout=seconds)
        return Ran(str(answer.get("output") or ""), str(answer.get("error") or ""), int(answer.get("returncode") or 0))

    async def setup(self, route: str, body: Mapping[str, Any]) -> None:
        """Call a route of the set-up, such as ``launch``, once."""
        await self._call("POST", f"/setup/{route}", json=dict(body), timeout=SETUP_SECONDS)

    async def upload(self, path: str, data: bytes) -> None:
        """Write a file in the machine."""
        files = {"file_data": (path.rpartition("/")[2], data)}
        await self._call("POST", "/setup/upload", data={"file_path": path}, files=files, timeout=SETUP_SECONDS)

    async def read_file(self, path: str) -> bytes | None:
        """Return a file of the machine; None if there is none."""
        response = await self._call("POST", "/file", data={"file_path": path}, again=True, missing=True)
        return None if response.status_code == 404 else response.content

    async def accessibility(self) -> str:
        """Return the accessibility tree as XML."""
        return str((await self._json("GET", "/accessibility", again=True))["AT"])

    async def terminal(self) -> str:
        """Return what the terminal's window shows."""
        return str((await self._json("GET", "/terminal", again=True)).get("output") or "")

    async def _json(self, method: str, route: str, **more: Any) -> dict[str, Any]:
        response = await self._call(method, route, **more)
        try:
            answer = response.json()
        except ValueError as error:
            raise InfraError(f"the machine's answer to {route} is not JSON", code="vm_lost") from error
        if not isinstance(answer, dict):
            raise InfraError(f"the machine's answer to {route} is not an object", code="vm_lost")
        return answer

    async def _call(
        self, method: str, route: str, *, again: bool = False, missing: bool = False, **more: Any
    ) -> httpx.Response:
        """Return an answer; ``again``: the call only looks, ``missing``: a 404 is an answer."""
        said = ""
        for left in reversed(range(LOOKS if again else 1)):
            try:
                response = await self._client.request(method, route, **more)
                if len(response.content) > MAX_BYTES:
                    raise InfraError(f"the machine's answer to {route} is too large", code="vm_lost")
                if response.is_success or (missing and response.status_code == 404):
                    return response
                said = f"HTTP {response.status_code}: {response.text[:300]}"
            except httpx.HTTPError as error:
                said = f"{type(error).__name__}: {error}"
            if left:
                await asyncio.sleep(BETWEEN_SECONDS)
        raise InfraError(f"the machine failed {route}: {said}", code="vm_lost")
