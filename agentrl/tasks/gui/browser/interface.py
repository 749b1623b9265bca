"""What a browser's page offers, whichever library drives it: commands of the DevTools protocol.

Both libraries only carry commands, so an action does the same with either (`agentrl.tasks.gui.computer`).
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.exceptions import InfraError

TWO_FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
SEND_S = 60.0
"""After which a browser that does not answer a command is gone."""
SETTLE_MS = 500
"""Longest wait for two frames; a page that draws none is not waited for."""


@dataclass(frozen=True)
class Screen:
    """What the agent sees of a page.

    Attributes:
        width: of the part that it sees, in CSS pixels, from the page's left.
        height: of this part, from the page's top.
        scale: picture pixels per CSS pixel.
        window: width and height of the browser's window, which may be larger.
    """

    width: int
    height: int
    scale: int
    window: tuple[int, int]

    @property
    def picture(self) -> tuple[int, int]:
        """Width and height of its picture."""
        return self.width * self.scale, self.height * self.scale


class Page(ABC):
    """One page of a running browser."""

    @abstractmethod
    async def send(self, method: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Carry out a command of the DevTools protocol, such as ``Page.navigate``; return its answer.

        Raises:
            InfraError: the browser is gone, or refuses.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go of the browser; a second call does nothing."""

    async def evaluate(self, expression: str) -> Any:
        """Return the JSON value of a JavaScript expression, of a promise its result.

        Raises:
            InfraError: it throws, or the browser is gone.
        """
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = await self.send("Runtime.evaluate", asked)
        if "exceptionDetails" in answer:
            thrown = answer["exceptionDetails"]
            said = thrown.get("exception", {}).get("description") or thrown.get("text", "")
            raise InfraError(f"a script of the environment failed in the page: {said[:500]}", code="page_script")
        return answer["result"].get("value")

    async def show(self, screen: Screen) -> None:
        """Make the window as large as the screen says."""
        width, height = screen.window
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": screen.scale, "mobile": False},
        )

    async def picture(self, screen: Screen) -> bytes:
        """Return a PNG of the screen."""
        clip = {"x": 0, "y": 0, "width": screen.width, "height": screen.height, "scale": 1}
        answer = await self.send("Page.captureScreenshot", {"format": "png", "clip": clip})
        return base64.b64decode(answer["data"])

    async def settle(self) -> None:
        """Wait until the page has drawn what the last command changed."""
        await self.evaluate(f"Promise.race([{TWO_FRAMES}, new Promise(done => setTimeout(done, {SETTLE_MS}))])")
