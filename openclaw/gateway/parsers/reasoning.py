"""The format of thoughts: a first tag (`<think>`), the thought, a last tag (`</think>`), the answer.

Guarantees: any split of the text gives the same deltas once merged. Line breaks next to the tags belong to the format
and are dropped, as the chat template adds them again; nothing else is changed. A first tag later in the text is text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from openclaw.gateway.parsers.deltas import Content, Reasoning
from openclaw.gateway.parsers.scan import held_back


@dataclass(frozen=True)
class ReasoningFormat:
    """How a thought is marked.

    Attributes:
        open: its first tag.
        close: its last tag.
        begins_inside: whether a reply begins with a thought even when neither prompt nor reply opens one.
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
        """Start a reply; ``inside`` when the prompt ended in the first tag already.

        ``thought`` says whether there is a thought.
        """
        self._form = form
        self._state = _State.REASONING if inside else _State.START
        self._held = ""
        self._spoken = False
        self.thought = inside

    @property
    def thinking(self) -> bool:
        """Whether what comes next may belong to a thought."""
        return self._state in (_State.START, _State.REASONING)

    def push(self, text: str) -> list[Content | Reasoning]:
        """Return what ``text`` adds."""
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
        """Return what was held back; the reply is over."""
        text, self._held = self._held, ""
        if not text:
            return []
        return [Reasoning(text) if self._state is _State.REASONING else Content(text)]

    def _open(self, text: str) -> str:
        """Decide whether the reply begins with a thought; return what is left to read."""
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
        """Read thought; return what comes after its end."""
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
