"""One adapter for all screens: a browser's page, or a whole machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from agentrl.exceptions import InvalidError
from agentrl.tasks.gui.actions import Action, Point
from agentrl.tasks.gui.browser.interface import Page, Screen
from agentrl.tasks.gui.dom import Element, as_text, elements
from agentrl.tasks.gui.inputs import Hands


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
            if action.element > len(self.elements):
                raise InvalidError(
                    f"there is no element {action.element}; the page has {len(self.elements)}", code="no_element"
                )
            found = self.elements[action.element - 1]
            point = found.x, found.y
        await self._hands.act(action, point, start)
