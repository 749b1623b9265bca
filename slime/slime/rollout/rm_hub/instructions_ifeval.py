"""Checks of the instruction kinds of IFEval (Zhou et al. 2023, arXiv:2311.07911), by their ids and argument names.

Guarantee: pure. A check follows the literal wording of its instruction. Kinds that depend on the language of a
reply or on sentence boundaries are not implemented.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

_PARAGRAPH_MARK = re.compile(r"\s*\*\*\*\s*")
_BULLET = re.compile(r"^\s*(?:\*(?!\*)|-)\s*\S", re.MULTILINE)
_HIGHLIGHT = re.compile(r"\*\*[^\n*]+\*\*|\*[^\n*]+\*")
_CHOICES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_QUOTES = "\"'“”"


def words_of(text: str) -> list[str]:
    """Return the runs of letters, digits and underscores."""
    return re.findall(r"\w+", text)


def compare(count: float, relation: str, bound: float) -> bool:
    """Return whether ``count`` is ``less than`` or ``at least`` the bound.

    Raises:
        ValueError: the relation is another one.
    """
    match relation:
        case "less than":
            return count < bound
        case "at least":
            return count >= bound
    raise ValueError(f"unknown relation {relation!r}; use 'less than' or 'at least'")


def occurrences(text: str, word: str) -> int:
    """Return how often a whole word or phrase occurs, in any case."""
    return len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE))


def _parts(text: str, separator: re.Pattern[str] | str) -> list[str]:
    parts = separator.split(text) if isinstance(separator, re.Pattern) else text.split(separator)
    return [part.strip() for part in parts]


def _all(text: str, words: Iterable[str]) -> bool:
    return all(occurrences(text, word) for word in words)


def nth_paragraph_first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Paragraphs are divided by an empty line; one of them begins with a word."""
    paragraphs = [part for part in _parts(text, re.compile(r"\n\s*\n")) if part]
    if len(paragraphs) != num_paragraphs or not 1 <= nth_paragraph <= num_paragraphs:
        return False
    words = words_of(paragraphs[nth_paragraph - 1])
    return bool(words) and words[0].lower() == first_word.lower()


def json_format(text: str) -> bool:
    """The whole reply is JSON, bare or in one fenced block."""
    fenced = re.fullmatch(r"```(?:json|Json|JSON)?\s*\n?(.*?)\n?```", text.strip(), re.DOTALL)
    try:
        json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return False
    return True


def two_responses(text: str) -> bool:
    """Two different answers, divided by six asterisks."""
    parts = [part for part in _parts(text, "******") if part]
    return len(parts) == 2 and parts[0] != parts[1]


def postscript(text: str, postscript_marker: str) -> bool:
    """A line begins with the marker of a postscript, spaced or not."""
    spaced = r"\s*".join(re.escape(letter) for letter in postscript_marker if not letter.isspace())
    return re.search(rf"^\s*{spaced}", text, re.IGNORECASE | re.MULTILINE) is not None


CHECKS: dict[str, Callable[..., bool]] = {
    "keywords:existence": lambda text, keywords: _all(text, keywords),
    "keywords:forbidden_words": lambda text, forbidden_words: not any(occurrences(text, w) for w in forbidden_words),
    "keywords:frequency": lambda text, keyword, frequency, relation: compare(
        occurrences(text, keyword), relation, frequency
    ),
    "keywords:letter_frequency": lambda text, letter, let_frequency, let_relation: compare(
        text.lower().count(letter.lower()), let_relation, let_frequency
    ),
    "length_constraints:number_words": lambda text, num_words, relation: compare(
        len(words_of(text)), relation, num_words
    ),
    "length_constraints:number_paragraphs": lambda text, num_paragraphs: (
        all(parts := _parts(text, _PARAGRAPH_MARK)) and len(parts) == num_paragraphs
    ),
    "length_constraints:nth_paragraph_first_word": nth_paragraph_first_word,
    "detectable_content:number_placeholders": lambda text, num_placeholders: (
        len(re.findall(r"\[[^\[\]]*\]", text)) >= num_placeholders
    ),
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": lambda text, num_bullets: len(_BULLET.findall(text)) == num_bullets,
    "detectable_format:constrained_response": lambda text: any(choice in text for choice in _CHOICES),
    "detectable_format:number_highlighted_sections": lambda text, num_highlights: (
        len([part for part in _HIGHLIGHT.findall(text) if part.strip("*").strip()]) >= num_highlights
    ),
    "detectable_format:multiple_sections": lambda text, section_spliter, num_sections: (
        len(re.findall(rf"(?<!\w){re.escape(section_spliter)}\s?\d+", text)) >= num_sections
    ),
    "detectable_format:json_format": json_format,
    "detectable_format:title": lambda text: any(title.strip() for title in re.findall(r"<<([^\n<>]+)>>", text)),
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": lambda text, prompt_to_repeat: (
        text.strip().lower().startswith(prompt_to_repeat.strip().lower())
    ),
    "startend:end_checker": lambda text, end_phrase: (
        text.strip().strip(_QUOTES).lower().endswith(end_phrase.strip().lower())
    ),
    "startend:quotation": lambda text: len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"',
    "change_case:english_capital": lambda text: text.isupper(),
    "change_case:english_lowercase": lambda text: text.islower(),
    "change_case:capital_word_frequency": lambda text, capital_frequency, capital_relation: compare(
        sum(word.isupper() for word in words_of(text)), capital_relation, capital_frequency
    ),
    "punctuation:no_comma": lambda text: "," not in text,
}


def arguments(values: dict[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of one instruction without the None entries that data sets fill in."""
    return {name: value for name, value in (values or {}).items() if value is not None}
