"""Text of others in Markdown: shown as it is, and never more than text.

Guarantees: a reply cannot end its block, make a link, a heading, an image or HTML, mention anybody, or hide characters: controls
and invisible format characters are written as escapes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from openclaw.messages.text import clip_middle

HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_MARKUP = re.compile(r"(?<!\d)\.|\.(?!\d)|_|[^\w .,()='+/;%?-]")
"""What could be markup or make a link: all but letters, digits, a few signs, and points between digits."""
_TICKS = re.compile(r"`+")


def visible(text: str, kept: str = "\n\t") -> str:
    """Return a text whose controls and invisible characters are written as ``\\u{...}``, but those of ``kept``."""
    return "".join(
        f"\\u{{{ord(letter):x}}}" if unicodedata.category(letter) in HIDDEN and letter not in kept else letter
        for letter in text
    )


def block(text: str, limit: int) -> str:
    """Return a text as a code block, with its middle cut out beyond ``limit`` characters."""
    shown = visible(clip_middle(text.replace("\r\n", "\n"), limit))
    fence = "`" * max(3, 1 + max(map(len, _TICKS.findall(shown)), default=0))
    return f"{fence}text\n{shown}\n{fence}"


def code(text: str, limit: int = 200) -> str:
    """Return a text on one line that may stand in a table; whatever could be markup is a character reference.

    A point between digits stays, as in a number or an address.
    """
    shown = visible(" ".join(clip_middle(text, limit).split()), "") or " "
    return f"<code>{_MARKUP.sub(lambda found: f'&#{ord(found[0])};', shown)}</code>"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; cells are ours, or made by `code`."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join("-" if cell is None else str(cell) for cell in line) + " |" for line in lines)
