"""Reads a judge's answer: the last box, the hint, or why the vote is invalid.

Guarantees: a vote is what the judge said last. The last ``\\boxed`` decides, however it is written; a last box that is
not exactly -1, 0 or 1 makes the vote invalid, so an earlier box never wins. Boxes inside a hint do not count, and a hint
that never ends leaves no vote. An answer that was cut off, or whose thought never ended, is an invalid vote with its own
name. A judge may quote what it judges anywhere: no spelling of a box survives `with_plain_boxes` and
`openclaw.judge.prompts.defuse` as one that is read. Pure functions.

Which hints may reach the teacher, and which of several is chosen.

A hint is text that a judge wrote about text that anybody may have written, and the teacher reads it as the user's words.

Guarantees: a usable hint has `MIN_CHARACTERS` to `MAX_CHARACTERS` characters, no box, marker or control character,
is not a refusal ("None. No hint needed."), and does not state the problem's answer. Pure functions.

The grammar of a judge's answer: any text, then exactly one of the allowed boxes, then the end.

Guarantees: an answer that an engine sampled under the grammar, and did not cut off, has one box, which is its end. The
tags are those of xgrammar, SGLang's grammar back end.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import Any

import orjson

from openclaw.ledger.records import InvalidVote, JudgeKind, Vote

MIN_CHARACTERS = 11
MAX_CHARACTERS = 600
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
    if not MIN_CHARACTERS <= len(hint) <= MAX_CHARACTERS:
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


SCORES = (-1, 0, 1)
DECISIONS = (-1, 1)
THINKING_START, THINKING_END = "<think>", "</think>"
HINT_START = "[HINT_START]"
CUTS = ("length", "content_filter")
"""How a server ended an answer that the judge had not finished."""
_HINT = re.compile(r"\[HINT_START\](.*?)\[HINT_END\]", re.DOTALL)
_BOX = re.compile(r"\\*boxed\s*(?=\{)|\\+(?:f|frame)?box(?:ed)?(?![a-z])\s*", re.IGNORECASE)
_ESCAPED = re.compile(r"\\+u([0-9a-fA-F]{4})")
SOFT_HYPHEN = "\u00ad"
"""Is a minus to some readers and nothing to others, so a box with one is not a vote."""
_MINUS = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2212\ufe63\uff0d"), "-")
_STYLED = re.compile(r"\\+(?:text|textbf|textrm|mathrm|mathbf|mathit|mathsf|bf|rm)\b\s*")
_SPACE = re.compile(r"\\+[,;:! ]|[\s{}$~]")
_NUMBER = re.compile(r"[+-]?(?:0|[1-9][0-9]*)(?:\.0*)?")
_ENTRY = re.compile(r"\"?([1-9][0-9]?)\"?[:=](0(?:\.[0-9]{0,6})?|1(?:\.0{0,6})?)")
_ITEM_END = re.compile(r"[,;]")


def read_vote(
    judge: JudgeKind, answer: str, seconds: float, *, finish: str = "stop", inside_thought: bool = False
) -> Vote:
    """Return the vote in a judge's answer.

    Args:
        judge: which question was asked.
        answer: what the judge wrote.
        seconds: how long it took.
        finish: how the answer ended; one of `CUTS` makes the vote invalid.
        inside_thought: whether the prompt ended in the opening tag of a thought.
    """
    visible, unread = _visible(answer, finish, inside_thought)
    if visible is None:
        return Vote(judge, answer, None, None, seconds, unread)
    allowed = SCORES if judge == "prm" else DECISIONS
    spoken = _HINT.sub(" ", visible)
    value, invalid = (None, "no_box") if HINT_START in spoken else last_box(spoken, allowed)
    hint = None
    if judge == "hint" and value == 1:
        hints = _HINT.findall(visible)
        hint = usable_hint(hints[-1]) if hints else None
    return Vote(judge, answer, value, hint, seconds, invalid)


def read_scores(
    answer: str, count: int, *, finish: str = "stop", inside_thought: bool = False
) -> tuple[tuple[float, ...] | None, InvalidVote | None]:
    r"""Return (scores, None) of a group's members from an answer, or (None, why it is invalid).

    The last box holds ``1: 0.80, 2: 0.25``: each number from 1 to ``count`` once, in any order, with a score from 0 to 1.

    Args:
        answer: what the judge wrote.
        count: members that it saw.
        finish: how the answer ended; one of `CUTS` makes it invalid.
        inside_thought: whether the prompt ended in the opening tag of a thought.
    """
    visible, unread = _visible(answer, finish, inside_thought)
    if visible is None:
        return None, unread
    content, missing = _last_content(visible)
    if content is None:
        return None, missing
    entries = [_ENTRY.fullmatch(entry) for entry in _ITEM_END.split(_SPACE.sub("", _STYLED.sub("", content)))]
    scores = {int(entry[1]): float(entry[2]) for entry in entries if entry is not None}
    if not len(entries) == len(scores) == count or scores.keys() != set(range(1, count + 1)):
        return None, "other_box"
    return tuple(scores[place] for place in range(1, count + 1)), None


def _visible(answer: str, finish: str, inside_thought: bool) -> tuple[str | None, InvalidVote | None]:
    """Return (what an answer says after its thinking, None), or (None, why nothing of it counts)."""
    if finish in CUTS:
        return None, "cut_off"
    visible = after_thinking(answer, inside_thought=inside_thought)
    return visible, "endless_thought" if visible is None else None


def after_thinking(answer: str, *, inside_thought: bool = False) -> str | None:
    """Return the part of ``answer`` after its thinking, or None if the thinking never ends."""
    _, end, visible = answer.rpartition(THINKING_END)
    unfinished = THINKING_START in visible or (inside_thought and not end)
    return None if unfinished else visible


def last_box(text: str, allowed: tuple[int, ...]) -> tuple[int | None, InvalidVote | None]:
    r"""Return (value, None) of the last box in ``text``, or (None, why it is invalid)."""
    content, missing = _last_content(text)
    if content is None:
        return None, missing
    value = _number(content)
    return (value, None) if value in allowed else (None, "other_box")


def _last_content(text: str) -> tuple[str | None, InvalidVote | None]:
    """Return (what the last box holds, None), or (None, why it cannot be read)."""
    plain = _plain(text)
    last = None
    for match in _BOX.finditer(plain):
        last = match
    if last is None:
        return None, "no_box"
    content = _content(plain, last.end()) if last[0].startswith("\\") else None
    return content, "other_box" if content is None else None


def with_plain_boxes(text: str) -> str:
    r"""Return ``text`` with every box that `last_box` would find spelled ``\boxed``."""
    while _BOX.search(plain := _plain(text)) and (safe := _BOX.sub(r"\\boxed", plain)) != text:
        text = safe
    return text


def _plain(text: str) -> str:
    r"""Return ``text`` with one character for each meaning: no full-width forms, ``\u2212``, other minuses, zero widths."""
    text = unicodedata.normalize("NFKC", _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)).translate(_MINUS)
    return "".join(
        character for character in text if character == SOFT_HYPHEN or unicodedata.category(character) != "Cf"
    )


def _content(text: str, start: int) -> str | None:
    """Return what a box holds: the text of its braces, or without braces the next word; None if it never closes."""
    if not text.startswith("{", start):
        return text[start:].split(maxsplit=1)[0] if text[start:].strip() else None
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == "{") - (text[position] == "}")
        if depth == 0:
            return text[start + 1 : position]
    return None


def _number(content: str) -> int | None:
    bare = _SPACE.sub("", _STYLED.sub("", content))
    if not _NUMBER.fullmatch(bare):
        return None
    return int(float(bare)) if len(bare) < 9 else None


BOXED = "\\boxed"


@cache
def answer_grammar(judge: JudgeKind) -> str:
    """Return the structural tag of the answers to one of the two questions."""
    values = SCORES if judge == "prm" else DECISIONS
    return _ending_in({"type": "or", "elements": [{"type": "const_string", "value": f"{value}}}"} for value in values]})


@cache
def scores_grammar(count: int) -> str:
    """Return the structural tag of the answers about a group of ``count`` members; see `read_scores`."""
    entries = ", ".join(rf"{place}: (0\.[0-9][0-9]|1\.00)" for place in range(1, count + 1))
    return _ending_in({"type": "regex", "pattern": entries + r"\}"})


def _ending_in(box: dict[str, Any]) -> str:
    """Return the structural tag of any text that ends in one box, of which ``box`` is what follows the opening brace."""
    text = {"type": "tag", "begin": "", "content": {"type": "any_text", "excludes": [BOXED]}, "end": f"{BOXED}{{"}
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": [text, box]}}
    return orjson.dumps(tag).decode()
