"""Token ids to text, one token at a time.

Guarantees: the joined text does not depend on how the ids are split over calls. No piece ends inside a UTF-8 sequence;
incomplete bytes are buffered until they are complete or the reply ends. Control tokens (end of turn, padding) give no
text. Markers for the parsers (`<think>`, `<tool_call>`) do, even if the tokenizer calls them special. A detokenizer owns
the state of one reply; `Vocabulary` is shared and immutable.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterable
from typing import Any, Protocol

MARKERS = frozenset({"<think>", "</think>", "<tool_call>", "</tool_call>"})
WINDOW_TOKENS = 8
REPLACEMENT = "\ufffd"
SPACE_PIECE = "▁"
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class Detokenizer(Protocol):
    """Turns the ids of one reply into text."""

    def push(self, ids: Iterable[int]) -> str:
        """Return the text that is complete after ``ids``."""
        ...

    def finish(self) -> str:
        """Return the buffered rest, with incomplete bytes as U+FFFD."""
        ...


class Vocabulary:
    """The properties of a tokenizer that all replies share.

    ``silent`` ids have no text, ``ends`` are the ids that end a reply, and ``size`` is the number of ids. ``bytes_of`` has
    the bytes of each token, if known.
    """

    def __init__(self, tokenizer: Any, markers: Collection[str] = MARKERS) -> None:
        """Analyse ``tokenizer`` (slow for a large one); ``markers`` are special tokens that have text."""
        self.tokenizer = tokenizer
        self._added = added = {index: token.content for index, token in tokenizer.added_tokens_decoder.items()}
        self.silent = frozenset(index for index in tokenizer.all_special_ids if added.get(index, "") not in markers)
        self.size = len(tokenizer)
        self.ends = frozenset({tokenizer.eos_token_id}) - {None}
        self.bytes_of = _bytes_of_tokens(tokenizer, added) if _is_byte_level(tokenizer) else None

    def token_bytes(self, index: int) -> bytes:
        """Return the bytes of one token, empty for an unused id."""
        if self.bytes_of is not None:
            return self.bytes_of.get(index, b"")
        if index in self._added:
            return self._added[index].encode()
        piece = self.tokenizer.convert_ids_to_tokens(index) or ""
        if match := BYTE_PIECE.fullmatch(piece):
            return bytes([int(match.group(1), 16)])
        return piece.replace(SPACE_PIECE, " ").encode()

    def detokenizer(self, silent: frozenset[int] | None = None) -> Detokenizer:
        """Return a new detokenizer for one reply; ``silent`` replaces the ids without text."""
        return WindowDetokenizer(self, silent) if self.bytes_of is None else ByteDetokenizer(self, silent)


class ByteDetokenizer:
    """For byte-level BPE, where tokens are runs of bytes: one incremental UTF-8 decoder is enough."""

    def __init__(self, vocabulary: Vocabulary, silent: frozenset[int] | None = None) -> None:
        assert vocabulary.bytes_of is not None
        self._bytes_of = vocabulary.bytes_of
        self._silent = vocabulary.silent if silent is None else silent
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        """Return the text that is complete after ``ids``."""
        silent, bytes_of = self._silent, self._bytes_of
        return self._decoder.decode(b"".join(bytes_of.get(index, b"") for index in ids if index not in silent))

    def finish(self) -> str:
        """Return the buffered rest, with incomplete bytes as U+FFFD."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any other tokenizer: decodes a short window of tokens again and emits the new text.

    The window begins at the end of a piece, never inside a character that spans several tokens.
    """

    def __init__(self, vocabulary: Vocabulary, silent: frozenset[int] | None = None) -> None:
        self._tokenizer = vocabulary.tokenizer
        self._silent = vocabulary.silent if silent is None else silent
        self._window: list[int] = []
        self._ends: list[int] = []  # ends of the pieces in the window
        self._emitted = ""

    def push(self, ids: Iterable[int]) -> str:
        """Return the text that is complete after ``ids``."""
        return "".join(self._step(index) for index in ids if index not in self._silent)

    def finish(self) -> str:
        """Return the buffered rest, with incomplete bytes as U+FFFD."""
        rest = self._decode(self._window)[len(self._emitted) :]
        self._window, self._ends, self._emitted = [], [], ""
        return rest

    def _step(self, index: int) -> str:
        self._window.append(index)
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT):
            return ""
        piece = text[len(self._emitted) :]
        self._emitted = text
        self._ends.append(len(self._window))
        if len(self._window) > WINDOW_TOKENS:
            self._shorten()
        return piece

    def _shorten(self) -> None:
        """Drop all but the pieces that end in the window's last tokens."""
        newest = len(self._window) - WINDOW_TOKENS // 2
        start = max((end for end in self._ends if end <= newest), default=0)
        self._window = self._window[start:]
        self._ends = [end - start for end in self._ends if end > start]
        self._emitted = self._decode(self._window)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _is_byte_level(tokenizer: Any) -> bool:
    """Return whether the decoder is plain byte-level BPE (GPT-2, Qwen, Llama 3)."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return type(getattr(backend, "decoder", None)).__name__ == "ByteLevel"


def _byte_of_character() -> dict[str, int]:
    """Return GPT-2's mapping from printable characters to bytes."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    mapping = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    return mapping | {chr(256 + number): byte for number, byte in enumerate(others)}


def _bytes_of_tokens(tokenizer: Any, added: dict[int, str]) -> dict[int, bytes]:
    """Return the bytes of each token by its id."""
    mapping = _byte_of_character()
    bytes_as_latin_1 = str.maketrans({character: chr(byte) for character, byte in mapping.items()})
    table = {}
    for token, index in tokenizer.get_vocab().items():
        if index in added:
            table[index] = added[index].encode()
        elif mapping.keys() >= set(token):
            table[index] = token.translate(bytes_as_latin_1).encode("latin-1")
        else:
            table[index] = b"".join(
                bytes([mapping[character]]) if character in mapping else character.encode() for character in token
            )
    return table
