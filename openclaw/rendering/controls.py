"""Tells the control tokens that the chat template writes from text that only spells them.

A control token is an added token of the tokenizer, such as ``<|im_end|>``, ``<think>`` or ``<tool_call>``; added tokens of
white space are ordinary text. The text of each control token in the template's source gets the character `MARK` in front.
No client can send this character, because `clean` replaces it. So a control token in a rendered prompt is the
template's if and only if it is marked.

Guarantees: a client's strings reach the template unchanged, unless they have one of the three reserved
noncharacters. What the template compares with a control token's text is never equal to a client's. Immutable.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

MARK = "\ufdd0"
"""Stands before each control token of the template."""
PLACE = "\ufdd1"
"""Stands for the content of one of our replies, see `openclaw.rendering.splice`."""
THOUGHT = "\ufdd2"
"""Stands for the reasoning of one of our replies."""
RESERVED = (MARK, PLACE, THOUGHT)
RESERVED_BYTES = tuple(character.encode() for character in RESERVED)
COMMON_BYTES = RESERVED_BYTES[0][:2]
ROLES = ("system", "user", "assistant", "tool")
REPLACED = dict.fromkeys(map(ord, RESERVED), "\ufffd")


class Controls:
    """The control tokens of a tokenizer; ``ids`` maps their texts to ids, ``texts`` the reverse."""

    def __init__(self, tokenizer: Any) -> None:
        """Find the control tokens of a ``transformers`` tokenizer."""
        added = {index: token.content for index, token in tokenizer.added_tokens_decoder.items()}
        self.texts = {index: text for index, text in added.items() if text.strip()}
        self.ids = {text: index for index, text in self.texts.items()}
        longest_first = sorted(self.ids, key=len, reverse=True)
        either = "|".join(map(re.escape, longest_first)) or "(?!)"
        self._spelled = re.compile(either)
        self._cut = re.compile(f"{MARK}({either})")
        self._stray = re.compile(f"{MARK}(?!{either})")
        self._joined = {
            text.replace(role, MARK + role): MARK + text
            for text in longest_first
            for role in ROLES
            if role in text and not text.startswith(role)
        }

    def mark(self, source: str) -> str:
        """Return a template's source, or another trusted text, with its control tokens marked."""
        return self._spelled.sub(rf"{MARK}\g<0>", source)

    def spelled(self, text: str) -> bool:
        """Return whether ``text`` spells a control token."""
        return self._spelled.search(text) is not None

    def spelled_in(self, value: Any) -> bool:
        """Return whether a string or key of a JSON value spells a control token."""
        if isinstance(value, str):
            return self.spelled(value)
        if isinstance(value, dict):
            return any(self.spelled_in(key) or self.spelled_in(item) for key, item in value.items())
        return isinstance(value, list) and any(map(self.spelled_in, value))

    def broken(self, text: str, by: str) -> str:
        """Return ``text`` with ``by`` inside each control token that it spells."""
        return self._spelled.sub(lambda match: f"{match[0][:1]}{by}{match[0][1:]}", text)

    def join(self, text: str) -> str:
        """Return a prompt with `MarkedRole` roles in which whole control tokens are marked, such as ``<|user|>``."""
        for parts, whole in self._joined.items():
            text = text.replace(parts, whole)
        return self._stray.sub("", text)

    def cut(self, text: str) -> list[str]:
        """Return the parts of a marked text: ordinary text, control token, ordinary text, and so on."""
        return self._cut.split(text)


class MarkedRole(str):
    """A role that has a mark where a template prints it, and is the plain role wherever else it is used."""

    def __str__(self) -> str:
        return MARK + self[:]

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


def unmarked(text: str) -> str:
    """Return a marked text without its marks."""
    return text.replace(MARK, "")


def clean(value: Any) -> Any:
    """Return a JSON value without reserved characters in its strings and keys; usually ``value`` itself."""
    return _replaced(value) if _reserved(value) else value


def _reserved(value: Any) -> bool:
    """Return whether a reserved character is in a JSON value; its whole text at once is fastest to search."""
    try:
        text = orjson.dumps(value)
    except TypeError:  # a lone surrogate, a large number, or deep nesting
        return _reserved_inside(value)
    return COMMON_BYTES in text and any(character in text for character in RESERVED_BYTES)


def _reserved_inside(value: Any) -> bool:
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            if any(character in item for character in RESERVED):
                return True
        elif isinstance(item, dict):
            todo += item
            todo += item.values()
        elif isinstance(item, list | tuple):
            todo += item
    return False


def _replaced(value: Any) -> Any:
    if isinstance(value, str):
        return value.translate(REPLACED)
    if isinstance(value, dict):
        return {_replaced(key): _replaced(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(item) for item in value]
    return value
