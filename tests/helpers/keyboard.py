"""A browser's page that is used by keyboard alone, and what it asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MOST_TABS = 80
FOCUSED = "document.activeElement.innerText || document.activeElement.name || ''"


@dataclass
class Keyboard:
    """A page of Playwright's asynchronous API; ``asked`` and ``told`` have its requests and its console."""

    page: Any
    asked: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin to listen."""
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.told.append(message.text))

    async def tab_to(self, name: str) -> None:
        """Press Tab until what has the focus is called ``name``."""
        for _ in range(MOST_TABS):
            await self.page.keyboard.press("Tab")
            if (await self.page.evaluate(FOCUSED)).strip() == name:
                return
        raise AssertionError(f"Tab never reaches {name!r} on {self.page.url}")

    async def press(self, name: str) -> None:
        """Tab to a link or button, press Enter, and wait for the page."""
        await self.tab_to(name)
        async with self.page.expect_navigation():
            await self.page.keyboard.press("Enter")

    async def write(self, field: str, words: str) -> None:
        """Type words into the field that a new page gives the focus, which may be after the page has loaded."""
        await self.page.locator(f"#{field}:focus").wait_for()
        await self.page.keyboard.type(words)

    async def log_in(self, key: str) -> None:
        """Type a key into the form that has the focus."""
        await self.write("key", key)
        async with self.page.expect_navigation():
            await self.page.keyboard.press("Enter")
