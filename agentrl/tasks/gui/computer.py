"""One adapter for all screens: a browser's page, or a whole machine.

Guarantees: every action of `agentrl.tasks.gui.actions` is carried out whole. The pointer stays where it was moved, also
between actions. Keys and buttons are up again afterwards. A page cannot tell the events from a person's.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.tasks.gui.actions import CLICKS, Action, Point
from agentrl.tasks.gui.browser.interface import Page, Screen
from agentrl.tasks.gui.dom import Element, as_text, elements, numbered
from agentrl.tasks.gui.keys import NAMED, Key, key_of, needs_shift

DRAG_STEPS = 8
BITS = {"left": 1, "right": 2, "middle": 4}
SHIFT = NAMED["shift"]


@dataclass
class Hands:
    """Mouse and keyboard of one page; points are in CSS pixels."""

    page: Page
    x: float = 0.0
    y: float = 0.0

    async def act(self, action: Action, point: Point | None, start: Point | None) -> None:
        """Carry out an action other than ``terminate``.

        Args:
            action: what to do; its own points are not read.
            point: where, None for where the pointer is.
            start: of a drag, None for where the pointer is.

        Raises:
            InfraError: the browser is gone.
        """
        if action.name == "left_click_drag":
            assert point is not None
            await self._drag(start, point)
            return
        if point is not None:
            await self._move(point)
        if action.name in CLICKS:
            await self._click(*CLICKS[action.name])
        elif action.name in ("scroll", "hscroll"):
            across = action.name == "hscroll"
            deltas = {"deltaX": float(action.pixels if across else 0), "deltaY": float(0 if across else -action.pixels)}
            await self._mouse("mouseWheel", **deltas)
        elif action.name == "key":
            await self._chord([key for name in action.keys if (key := key_of(name))])
        elif action.name == "type":
            await self._type(action.text)
        elif action.name == "wait":
            await asyncio.sleep(action.seconds)

    async def _mouse(self, kind: str, **more: Any) -> None:
        await self.page.send("Input.dispatchMouseEvent", {"type": kind, "x": self.x, "y": self.y, **more})

    async def _move(self, point: Point, buttons: int = 0) -> None:
        self.x, self.y = point
        await self._mouse("mouseMoved", buttons=buttons, button="left" if buttons else "none")

    async def _click(self, button: str, times: int) -> None:
        for count in range(1, times + 1):
            await self._mouse("mousePressed", button=button, buttons=BITS[button], clickCount=count)
            await self._mouse("mouseReleased", button=button, buttons=0, clickCount=count)

    async def _drag(self, start: Point | None, end: Point) -> None:
        if start is not None:
            await self._move(start)
        await self._mouse("mousePressed", button="left", buttons=1, clickCount=1)
        x, y = self.x, self.y
        for step in range(1, DRAG_STEPS + 1):
            share = step / DRAG_STEPS
            await self._move((x + (end[0] - x) * share, y + (end[1] - y) * share), buttons=1)
        await self._mouse("mouseReleased", button="left", buttons=0, clickCount=1)

    async def _chord(self, keys: list[Key]) -> None:
        held = 0
        typing = not any(key.modifier & ~SHIFT.modifier for key in keys)
        for key in keys:
            held |= key.modifier
            await self._key("keyDown", key, held, text=key.text if typing else "")
        for key in reversed(keys):
            held &= ~key.modifier
            await self._key("keyUp", key, held)

    async def _type(self, text: str) -> None:
        for character in text.replace("\r\n", "\n"):
            key = NAMED["enter"] if character == "\n" else NAMED["tab"] if character == "\t" else key_of(character)
            if key is None or not key.code:
                await self.page.send("Input.insertText", {"text": character})
            else:
                await self._chord([SHIFT, key] if needs_shift(character) else [key])

    async def _key(self, kind: str, key: Key, held: int, text: str = "") -> None:
        event: dict[str, Any] = {"type": kind if text or kind == "keyUp" else "rawKeyDown", "modifiers": held}
        event |= {"key": key.key, "code": key.code, "windowsVirtualKeyCode": key.number}
        await self.page.send("Input.dispatchKeyEvent", event | ({"text": text} if text else {}))


@dataclass(frozen=True)
class Look:
    """What a screen shows: a PNG, or None if nobody asked for one, and its elements as text."""

    png: bytes | None
    text: str = ""


class Computer(Protocol):
    """A screen with mouse and keyboard.

    Attributes:
        size: width and height of the screen, in which points are given.
        picture: width and height of its pictures.
    """

    size: tuple[int, int]
    picture: tuple[int, int]

    async def look(self, *, png: bool, text: bool) -> Look:
        """Return what the screen shows.

        Raises:
            InfraError: the computer is gone.
        """
        ...

    async def act(self, action: Action, point: Point | None, start: Point | None) -> None:
        """Carry out an action other than ``terminate``, at points of the screen.

        Raises:
            InvalidError: there is no such element.
            InfraError: the computer is gone.
        """
        ...


class BrowserComputer:
    """A page as a `Computer`; elements are those of its last text."""

    def __init__(self, page: Page, screen: Screen, hidden: tuple[str, ...] = ()) -> None:
        self.page = page
        self.screen = screen
        self.size = screen.width, screen.height
        self.picture = screen.picture
        self.elements: list[Element] = []
        self._hidden = hidden
        self._hands = Hands(page)

    async def look(self, *, png: bool, text: bool) -> Look:
        """See `Computer`."""
        await self.page.settle()
        self.elements = await elements(self.page, self.screen, self._hidden) if text else []
        return Look(await self.page.picture(self.screen) if png else None, as_text(self.elements) if text else "")

    async def act(self, action: Action, point: Point | None, start: Point | None) -> None:
        """See `Computer`."""
        if action.element is not None:
            target = numbered(self.elements, action.element)
            point = target.x, target.y
        await self._hands.act(action, point, start)
