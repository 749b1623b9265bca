"""Tokenises prompts segment by segment, with a cache, because every request repeats the conversation's history.

A tokenizer first splits a text at its control tokens. The segments between them are independent, so their joined ids are
the ids of the whole text.

Guarantees: only a marked control token (`openclaw.rendering.controls`) gets its id; one that text spells gets the ids of
its characters. Otherwise the ids are those of ``tokenizer.encode``. For tokenizers where segments may depend on each
other (not plain byte-level, or with control tokens that strip spaces), the whole text is encoded at once. The cache
holds ``MOST_CACHED_TOKENS``, evicted least recently used first. Owns the cache; used by one caller at a time.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import Any

from openclaw.rendering.bare import BareTokenizer
from openclaw.rendering.controls import Controls

MOST_CACHED_TOKENS = 4_000_000  # 16 MB of ids


class SegmentEncoder:
    """Encodes the text of a prompt."""

    def __init__(self, tokenizer: Any, controls: Controls) -> None:
        """Create an encoder for a ``transformers`` tokenizer; ``cuts`` says whether its segments are independent."""
        self._tokenizer = tokenizer
        self._controls = controls
        self._bare = BareTokenizer(tokenizer, controls)
        self.cuts = bool(controls.ids) and _cuts_cleanly(tokenizer)
        self._normalises = _normalises(tokenizer)
        self._cache: OrderedDict[str, array[int]] = OrderedDict()
        self._cached_tokens = 0

    def encode(self, text: str) -> list[int]:
        """Return the ids of a marked text, without adding control tokens."""
        if not self.cuts:
            return self._bare.encode(text)
        ids: list[int] = []
        for number, part in enumerate(self._controls.cut(text)):
            if number % 2:
                ids.append(self._controls.ids[part])
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
        if self._normalises or self._controls.spelled(text):
            found = array("i", self._bare.encode(text))
        else:
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


def _normalises(tokenizer: Any) -> bool:
    """Return whether normalisation can turn other characters into an added token."""
    added = tokenizer.added_tokens_decoder.values()
    return tokenizer.backend_tokenizer.normalizer is not None and any(token.normalized for token in added)
