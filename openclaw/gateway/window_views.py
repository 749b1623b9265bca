"""What the gateway asks of the views of the window (`openclaw.gateway.window`).

Types and names: the process that implements them loads no server.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from openclaw.exceptions import OpenClawError

WINDOW = "/window"
BELOW = f"{WINDOW}/"
"""How the paths of the window begin."""
LOG_IN, LOG_OUT, STYLE, SCRIPT, EVENTS = (
    f"{WINDOW}/{name}" for name in ("log_in", "log_out", "style.css", "window.js", "events")
)
BUSY = "window_busy"
"""The code of the refusal while too many looks are under way."""
Form = Literal["page", "json"]
CHAT_NAME = re.compile(r"window-[0-9a-f]{12}")
"""What a conversation is called that somebody has in the window."""

SILENT = {"first_silent": "version", "second_silent": "other"}
"""What the chat is told when one of two versions beside each other did not answer; the word of the query that names it."""


def new_chat() -> str:
    """Return the name of a new conversation."""
    return f"window-{secrets.token_hex(6)}"


class UnknownViewError(OpenClawError):
    """There is no such view, or it has nothing of that name for whoever asks; the text says what to do."""


class ChangeError(OpenClawError):
    """The run cannot do what an admin asks; the text says why."""


class Asked(NamedTuple):
    """A look through the window.

    Attributes:
        view: its name.
        words: of the query.
        form: a page, or its twin in JSON.
        name: of the key, as the page shows it.
        owner: whose sessions are shown, with those of children; None: everybody's.
        person: whose lessons and adapter are meant.
        logged_in: whether the page offers to log out.
        prices: dollars per million tokens of each meter.
        quotas: of the key, tokens per day.
    """

    view: str
    words: Mapping[str, str]
    form: Form
    name: str
    owner: str | None
    person: str
    logged_in: bool
    prices: Mapping[str, float] = {}
    quotas: Mapping[str, int] = {}

    @property
    def key(self) -> object:
        """What is the same for looks that show the same."""
        told = (self.words, self.prices, self.quotas)
        return self.view, self.form, self.owner, self.person, *(tuple(sorted(each.items())) for each in told)


class Views(Protocol):
    """The views of one server."""

    async def show(self, asked: Asked) -> bytes:
        """Return a page, or JSON; raise UnknownViewError."""
        ...

    async def roll_back(self, version: str) -> None:
        """Let the run go back to a version of the weights that all share; raise ChangeError."""
        ...

    async def accept(self) -> None:
        """Accept what the gate refused of the weights that all share; raise ChangeError."""
        ...

    async def revisions(self, open_pages: Sequence[Asked]) -> list[str | None]:
        """Return a text for each page that changes with what it shows; None where that is not known now.

        Raises:
            ApiError: the views do not answer.
        """
        ...

    async def close(self) -> None:
        """Let go of what the views hold."""
        ...
