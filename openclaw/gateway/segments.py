"""Tokenises prompts segment by segment, with a cache, because every request repeats the conversation's history.

A tokenizer first splits a text at its control tokens. The segments between them are independent, so their joined ids are
the ids of the whole text.

Guarantees: the same ids as ``tokenizer.encode``. Tokenizers for which this is not certain (not plain byte-level, or with
control tokens that strip spaces) encode the whole text themselves. The cache holds ``MOST_CACHED_TOKENS``, evicted least
recently used first. Owns the cache; used by one caller at a time.
"""

from __future__ import annotations

import re
from array import array
from collections import OrderedDict
from typing import Any

MOST_CACHED_TOKENS = 4_000_000  # 16 MB of ids


class SegmentEncoder:
    """Encodes the text of a prompt."""

    def __init__(self, tokenizer: Any) -> None:
        """Create an encoder for a ``transformers`` tokenizer."""
        self._tokenizer = tokenizer
        self._cache: OrderedDict[str, array[int]] = OrderedDict()
        self._cached_tokens = 0
        # Normalisation may remove tokens that are matched after it; only the tokenizer itself finds those.
        self._controls = {
            token.content: index for index, token in tokenizer.added_tokens_decoder.items() if not token.normalized
        }
        self._cut: re.Pattern[str] | None = None
        if self._controls and _cuts_cleanly(tokenizer):
            longest_first = sorted(self._controls, key=len, reverse=True)
            self._cut = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``, without adding control tokens."""
        if self._cut is None:
            return self._tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = []
        for number, part in enumerate(self._cut.split(text)):
            if number % 2:
                ids.append(self._controls[part])
            elif part:
                ids.extend(self._part(part))
        return ids

    def forget(self) -> None:
        """Clear the cache."""
        self._cache.clear()
        self._cached_tokens = 0

    def _part(self, text: str) -> array[int]:
        found = self._cache.get(text)
        if found is not None:
            self._cache.move_to_end(text)
            return found
        found = array("i", self._tokenizer.encode(text, add_special_tokens=False))
        self._cache[text] = found
        self._cached_tokens += len(found)
        while self._cached_tokens > MOST_CACHED_TOKENS:
            _, oldest = self._cache.popitem(last=False)
            self._cached_tokens -= len(oldest)
        return found


def _cuts_cleanly(tokenizer: Any) -> bool:
    """Return whether segments between control tokens are tokenised independently."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or type(backend.decoder).__name__ != "ByteLevel":
        return False
    if "add_prefix_space=True" in repr(backend.pre_tokenizer) or getattr(tokenizer, "split_special_tokens", False):
        return False
    added = tokenizer.added_tokens_decoder.values()
    return not any(token.lstrip or token.rstrip or token.single_word for token in added)
