"""Which hints may reach the teacher, and which of several is chosen.

A hint is text that a judge wrote about text that anybody may have written, and the teacher reads it as the user's words.

Guarantees: a usable hint has `FEWEST_CHARACTERS` to `MOST_CHARACTERS` characters, no box, marker or control character,
is not a refusal ("None. No hint needed."), and does not state the problem's answer. Pure functions.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from openclaw.ledger.records import Vote

FEWEST_CHARACTERS = 11
MOST_CHARACTERS = 600
_MARKUP = re.compile(r"\\+boxed|\[/?HINT|<<<|>>>", re.IGNORECASE)
_REFUSAL = re.compile(
    r"\W*(?:none|null|n\s*/\s*a|not applicable|no (?:\w+ ){0,2}hints?(?: (?:is |are )?\w+)?"
    r"|no (?:corrections?|changes?)(?: (?:is |are )?\w+)?|there (?:is|are) no (?:\w+ )?hints?"
    r"|没有提示|无需提示|不需要(?:提示)?)\s*(?:$|[.,;:!。;:!,-])"
    r"|\W*(?:no|nothing|无|没有)\W*$",
    re.IGNORECASE,
)
_ANSWER = re.compile(
    r"\b(?:the |its |your )?(?:right |correct |final |expected )*(?:answer|result|solution) (?:is|was|should be|would be)\b"
    r"|(?:正确|最终)?(?:答案|结果)(?:是|为|应为)",
    re.IGNORECASE,
)


def usable_hint(text: str) -> str | None:
    """Return a hint as the teacher may read it, or None if it is unusable."""
    hint = "".join(" " if _is_control(character) else character for character in text).strip()
    if not FEWEST_CHARACTERS <= len(hint) <= MOST_CHARACTERS:
        return None
    if _MARKUP.search(hint) or _REFUSAL.match(hint) or _ANSWER.search(hint):
        return None
    return hint


def _is_control(character: str) -> bool:
    return character not in "\n\t" and unicodedata.category(character) in ("Cc", "Cf", "Co", "Cs", "Cn")


def longest_hint(votes: Iterable[Vote]) -> str | None:
    """Return the longest hint among the accepted votes (the first of equals), or None."""
    hints = [vote.hint for vote in votes if vote.hint is not None]
    return max(hints, key=len) if hints else None
