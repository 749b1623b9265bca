"""Before and after: first replies to like questions, from the first and the last third of the updates.

Guarantees: a pair is chosen by its questions and by whether the early reply was disliked, never by the later reply or its
verdict. Only a bounded number of texts is read. Equal questions come first; otherwise two are alike if they share most of their words, numbers aside.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw.ledger.store import Ledger
from openclaw.ledger.views import TurnText
from openclaw.messages.text import clip_middle, content_text, response_text
from openclaw.report.totals import FirstReply

PAIRS = 5
CANDIDATES = 200
"""Most texts that are read of each third and kind."""
ALIKE = 0.5
"""Least share of common words of two like questions."""
MAX_LENGTH = 1200
WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class Example:
    """A reply: to what, with how many updates, and the judge's score."""

    question: str
    reply: str
    updates: int
    score: int | None


def pairs(ledger: Ledger, firsts: Sequence[FirstReply]) -> list[tuple[Example, Example]]:
    """Return up to `PAIRS` first replies from before and after the updates in between."""
    updates = max((first.updates for first in firsts), default=0)
    if not updates:
        return []
    early = [first for first in firsts if first.updates <= updates / 3]
    late = [first for first in firsts if first.updates >= 2 * updates / 3]
    before, after = _texts(ledger, early), _texts(ledger, late)
    examples: list[tuple[Example, Example]] = []
    disliked = [one for one in before if one.example.score == -1]
    for chosen, least in ((disliked, ALIKE), (before, 1.0), (before, ALIKE)):
        for one in list(chosen):
            if one not in before:
                continue
            near = max(after, key=lambda other: _likeness(one, other), default=None)
            if near is None or _likeness(one, near) < least:
                continue
            examples.append((one.example, near.example))
            before.remove(one)
            after.remove(near)
            if len(examples) == PAIRS:
                return examples
    return examples


@dataclass(frozen=True)
class _Candidate:
    example: Example
    kind: str
    words: frozenset[str]


def _likeness(one: _Candidate, other: _Candidate) -> float:
    """Return 1 for equal questions, less than 1 for like ones, 0 for different ones; side turns are alike only if equal."""
    if one.example.question == other.example.question:
        return 1.0
    if "side" in (one.kind, other.kind) or not one.words | other.words:
        return 0.0
    return min(0.99, len(one.words & other.words) / len(one.words | other.words))


def _texts(ledger: Ledger, firsts: Sequence[FirstReply]) -> list[_Candidate]:
    chosen = [first for kind in ("main", "side") for first in _spread([item for item in firsts if item.kind == kind])]
    by_number = {first.number: first for first in chosen}
    return [_candidate(text, by_number[text.number]) for text in ledger.views.turn_texts(sorted(by_number))]


def _spread(firsts: Sequence[FirstReply]) -> Sequence[FirstReply]:
    """Return at most `CANDIDATES` of them, evenly spaced."""
    step = max(1, len(firsts) // CANDIDATES)
    return firsts[::step][:CANDIDATES]


def _candidate(text: TurnText, first: FirstReply) -> _Candidate:
    asked = [message for message in text.messages if message.get("role") == "user"]
    question = content_text(asked[-1].get("content")) if asked else ""
    reply = clip_middle(response_text(text.response_message), MAX_LENGTH)
    example = Example(clip_middle(question, MAX_LENGTH), reply, first.updates, first.score)
    return _Candidate(example, first.kind, frozenset(WORD.findall(question.lower())))
