"""The format of thoughts: opening tag (`<think>`), thought, closing tag (`</think>`), answer.

Guarantees: any split of the text gives the same merged deltas. Line breaks next to the tags belong to the format
and are dropped, because the chat template adds them again; nothing else changes. An opening tag later in the text is text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from openclaw.gateway.parsers.deltas import Content, Reasoning
from openclaw.gateway.parsers.scan import held_back


@dataclass(frozen=True)
class ReasoningFormat:
    """The tags of a thought.

    Attributes:
        open: opening tag.
        close: closing tag.
        begins_inside: whether a reply begins inside a thought even without an opening tag.
    """

    open: str = "<think>"
    close: str = "</think>"
    begins_inside: bool = False


class _State(Enum):
    START = auto()
    REASONING = auto()
    GAP = auto()
    CONTENT = auto()


class ReasoningParser:
    """Separates thought from answer in one reply."""

    def __init__(self, form: ReasoningFormat, *, inside: bool = False) -> None:
        """Start a reply; ``inside`` if the prompt ends in the opening tag.

        ``thought`` says whether the reply has a thought.
        """
        self._form = form
        self._state = _State.REASONING if inside else _State.START
        self._held = ""
        self._spoken = False
        self.thought = inside

    @property
    def thinking(self) -> bool:
        """Whether the next text may belong to a thought."""
        return self._state in (_State.START, _State.REASONING)

    def push(self, text: str) -> list[Content | Reasoning]:
        """Return the deltas of ``text``, the next piece."""
        text = self._held + text
        self._held = ""
        pieces: list[Content | Reasoning] = []
        if self._state is _State.START:
            text = self._open(text)
        if self._state is _State.REASONING:
            text = self._think(text, pieces)
        if self._state is _State.GAP:
            text = text.lstrip("\n")
            if text:
                self._state = _State.CONTENT
        if self._state is _State.CONTENT and text:
            pieces.append(Content(text))
        return pieces

    def finish(self) -> list[Content | Reasoning]:
        """Return the buffered rest; the reply is over."""
        text, self._held = self._held, ""
        if not text:
            return []
        return [Reasoning(text) if self._state is _State.REASONING else Content(text)]

    def _open(self, text: str) -> str:
        """Decide whether the reply begins with a thought; return the unread text."""
        start = text.lstrip()
        if start.startswith(self._form.open):
            self._state, self.thought = _State.REASONING, True
            return start[len(self._form.open) :]
        if self._form.open.startswith(start):
            self._held = text
            return ""
        self.thought = self._form.begins_inside
        self._state = _State.REASONING if self.thought else _State.CONTENT
        return text

    def _think(self, text: str, pieces: list[Content | Reasoning]) -> str:
        """Read the thought; return the text after its end."""
        if not self._spoken:
            text = text.lstrip("\n")
        thought, close, rest = text.partition(self._form.close)
        if close:
            self._state = _State.GAP
            thought = thought.rstrip("\n")
        else:
            certain = thought[: len(thought) - held_back(thought, (self._form.close,))].rstrip("\n")
            self._held = thought[len(certain) :]
            thought = certain
        if thought:
            self._spoken = True
            pieces.append(Reasoning(thought))
        return rest
