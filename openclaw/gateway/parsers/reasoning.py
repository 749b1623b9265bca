"""Qwen3's reasoning format: `<think>`, the thought, `</think>`, the answer.

Guarantees: any split of the text gives the same deltas once merged. Line breaks next to the tags belong to the format
and are dropped, as the chat template adds them again; nothing else is changed. A `<think>` later in the text is text.
"""

from __future__ import annotations

from enum import Enum, auto

from openclaw.gateway.parsers.deltas import Content, Reasoning
from openclaw.gateway.parsers.scan import held_back

OPEN, CLOSE = "<think>", "</think>"


class _State(Enum):
    START = auto()
    REASONING = auto()
    GAP = auto()
    CONTENT = auto()


class ReasoningParser:
    """Separates thought from answer in one reply."""

    def __init__(self, *, inside: bool = False) -> None:
        """Start a reply; ``inside`` when the prompt ended in an open `<think>` already.

        ``thought`` says whether there is a thought.
        """
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
        if start.startswith(OPEN):
            self._state, self.thought = _State.REASONING, True
            return start[len(OPEN) :]
        if OPEN.startswith(start):
            self._held = text
            return ""
        self._state = _State.CONTENT
        return text

    def _think(self, text: str, pieces: list[Content | Reasoning]) -> str:
        """Read thought; return what comes after its end."""
        if not self._spoken:
            text = text.lstrip("\n")
        thought, close, rest = text.partition(CLOSE)
        if close:
            self._state = _State.GAP
            thought = thought.rstrip("\n")
        else:
            certain = thought[: len(thought) - held_back(thought, (CLOSE,))].rstrip("\n")
            self._held = thought[len(certain) :]
            thought = certain
        if thought:
            self._spoken = True
            pieces.append(Reasoning(thought))
        return rest
