"""Log-probabilities in OpenAI's shape: ``{"token", "logprob", "bytes", "top_logprobs"}`` for each token.

Guarantees: the numbers are the engine's, at the sampling temperature. An entry is released once its text can no longer
be part of a stop string. Tokens of a stop string and control tokens (end of turn) have no entry; reasoning and tool
calls do. Owns the entries of one reply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from chat_codec.detokenize import Vocabulary

IMPOSSIBLE = -1e30
"""A grammar gives excluded tokens the lowest float, or null, as log-probability."""


class LogprobEntries:
    """The entries of one reply, buffered until their text is released."""

    def __init__(self, vocabulary: Vocabulary, top: int, silent: frozenset[int] | None = None) -> None:
        """Start a reply with ``top`` alternatives per token; ``silent`` replaces the ids without text."""
        self._vocabulary = vocabulary
        self._silent = vocabulary.silent if silent is None else silent
        self._top = top
        self._held: deque[tuple[int, dict[str, Any]]] = deque()

    def add(self, start: int, token: int, logprob: float, alternatives: Sequence[Sequence[Any]]) -> None:
        """Add a sampled token.

        Args:
            start: number of characters before it.
            token: its id.
            logprob: the engine's value.
            alternatives: ``[logprob, id, ...]`` of the most likely tokens; impossible ones are dropped.
        """
        if token in self._silent:
            return
        entry = self._entry(token, logprob)
        likely = [item for item in alternatives if item[0] is not None and item[0] > IMPOSSIBLE][: self._top]
        entry["top_logprobs"] = [self._entry(item[1], item[0]) for item in likely]
        self._held.append((start, entry))

    def release(self, end: int | None) -> list[dict[str, Any]]:
        """Return the entries whose text begins before character ``end``, or all for None."""
        released = []
        while self._held and (end is None or self._held[0][0] < end):
            released.append(self._held.popleft()[1])
        return released

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        data = self._vocabulary.token_bytes(token)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}
