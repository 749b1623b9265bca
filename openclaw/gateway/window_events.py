"""``GET /window/events``: tells an open page of the window that what it shows has changed, by server-sent events.

Guarantees: a page hears of changes of what it shows itself, and of nothing else, so no owner learns how much others talk. One
question a second to the window's process finds the changes for all pages together (`Views.revisions`). A key has at most
`WINDOW_PAGES` open. A stream ends when its browser leaves, when its log-in or key ends or becomes another, when the views fail, and
at once when the server stops; views that are busy are asked again in the next round. Owned by the leading process, used from one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from openclaw.config.bounds import WINDOW_PAGES
from openclaw.gateway.dialects.dialect import COMMENT, event
from openclaw.gateway.errors import ApiError, ClientGoneError
from openclaw.gateway.stream import EventStream
from openclaw.gateway.window_views import BUSY, Asked, Views

POLL_SECONDS = 1.0


@dataclass(eq=False)
class _Page:
    """A page that is open; ``still``: whether whoever opened it may go on."""

    asked: Asked
    key: str
    revision: str
    still: Callable[[], bool]
    over: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self, revision: str | None) -> None:
        if revision is not None and revision != self.revision:
            self.revision = revision
            self.news.set()

    def end(self) -> None:
        self.over = True
        self.news.set()


class _Voice:
    """What a stream says by itself."""

    def heartbeat(self) -> bytes:
        return COMMENT

    def failure(self, error: ApiError) -> bytes:
        return event(error.body())


class _Stream(EventStream):
    """Ends without an error when the browser leaves."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientGoneError):
            await super().__call__(scope, receive, send)


class PageEvents:
    """The open pages of one server."""

    def __init__(self, views: Views, keepalive_seconds: float, round_seconds: float = POLL_SECONDS) -> None:
        """Begin without pages."""
        self._views = views
        self._keepalive_seconds = keepalive_seconds
        self._round_seconds = round_seconds
        self._pages: set[_Page] = set()
        self._watch: asyncio.Task[None] | None = None
        self._stopped = False

    def __len__(self) -> int:
        """Return how many pages are open."""
        return len(self._pages)

    def stream(self, asked: Asked, key: str, revision: str, still: Callable[[], bool]) -> Response:
        """Return the stream of a page.

        Args:
            asked: what the page shows.
            key: the name of the key, whose pages are counted.
            revision: of what the page shows now.
            still: whether whoever opened it may go on.

        Raises:
            ApiError: 429 if the key has too many pages open.
        """
        if sum(page.key == key for page in self._pages) >= WINDOW_PAGES.most:
            raise ApiError(
                429,
                f"at most {WINDOW_PAGES.most} pages of a key are kept up to date; close some",
                code="too_many_pages",
                limit=WINDOW_PAGES.name,
            )
        page = _Page(asked, key, revision, still, over=self._stopped)
        self._pages.add(page)
        if self._watch is None:
            self._watch = asyncio.create_task(self._rounds())
        return _Stream(
            self._events(page),
            _Voice(),
            {},
            lambda status: self._pages.discard(page),
            keepalive_seconds=self._keepalive_seconds,
        )

    def stop(self) -> None:
        """End all streams, and each later one at once: the server stops."""
        self._stopped = True
        for page in self._pages:
            page.end()

    async def _events(self, page: _Page) -> AsyncGenerator[bytes, None]:
        yield COMMENT  # the browser hears at once that it is connected
        while not page.over:
            await page.news.wait()
            page.news.clear()
            if not page.over:
                yield event({"revision": page.revision})

    async def _rounds(self) -> None:
        """Look for changes while there are pages."""
        try:
            while self._pages:
                await self._round()
                await asyncio.sleep(self._round_seconds)
        finally:
            self._watch = None

    async def _round(self) -> None:
        for page in self._pages:
            if not page.still():
                page.end()
        pages = {page.asked.key: page.asked for page in self._pages if not page.over}
        try:
            found = dict(zip(pages, await self._views.revisions([*pages.values()]), strict=True)) if pages else {}
        except ApiError as error:  # the log says why; the browsers come back after a while
            if error.code == BUSY:
                return
            for page in self._pages:
                page.end()
            return
        for page in self._pages:
            page.hear(found.get(page.asked.key))
