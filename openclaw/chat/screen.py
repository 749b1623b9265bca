"""The terminal of the chat: the prompt, replies as they come, and dim lines about them.

Guarantees: news from another thread never tears a reply or a half-typed message. It appears above an empty prompt at
once, else before the next prompt. What comes from the server cannot control the terminal. Without a terminal there is
no prompt, and the same text is written.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading

from rich.console import Console

from openclaw.messages.preview import harmless

PROMPT = "you> "
ERASE_LINE = "\r\x1b[K"


class Screen:
    """Standard input and output."""

    def __init__(self) -> None:
        """Use the terminal, with line editing if there is one."""
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._readline = None
        if self.interactive:
            with contextlib.suppress(ImportError):  # a Python without it still reads lines
                import readline

                self._readline = readline
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._lock = threading.RLock()
        self._news: list[str] = []
        self._asking = False

    def read(self) -> str | None:
        """Return the next line that the user types, None at the end of the input."""
        with self._lock:
            self.show_news()
            self._asking = True
        try:
            line = input(PROMPT if self.interactive else "")
        except EOFError:
            if self.interactive:
                self.line("")
            return None
        finally:
            self._asking = False
        return line.encode("utf-8", "replace").decode()

    def piece(self, text: str, *, dim: bool = False) -> None:
        """Write a piece of a reply as it is."""
        if dim:
            self._console.print(harmless(text), style="dim", end="")
        else:
            self._console.file.write(harmless(text))
        self._console.file.flush()

    def line(self, text: str) -> None:
        """Write a line."""
        self.piece(f"{text}\n")

    def note(self, text: str) -> None:
        """Write a dim line about the conversation."""
        self._console.print(harmless(text), style="dim")

    def announce(self, text: str) -> None:
        """Write a dim line that another thread brings, now or before the next prompt."""
        with self._lock:
            self._news.append(text)
            if self._asking and self._readline is not None and not self._readline.get_line_buffer():
                self._console.file.write(ERASE_LINE)
                self.show_news()
                self._console.file.write(PROMPT)
                self._console.file.flush()

    def show_news(self) -> None:
        """Write the news that came meanwhile."""
        with self._lock:
            for text in self._news:
                self.note(text)
            self._news.clear()
