"""``--rm-type ifbench``: 1 if the reply follows every instruction of its prompt, else 0.

As in the rows of IFEval and IFBench, a sample has ``metadata["instruction_id_list"]`` and ``metadata["kwargs"]``, the
arguments of each instruction. An instruction that is not implemented here is an error that names it, never a 0.

A check follows the literal wording of its instruction, and is pure. `OF_IFEVAL` are the kinds of IFEval (Zhou et al. 2023,
arXiv:2311.07911); those that depend on the language of a reply or on sentence boundaries are not implemented. `OF_IFBENCH` are the
kinds of IFBench (Pyatkin et al. 2025, arXiv:2507.02833); those that need sentences, syllables, parts of speech or facts about the
world are not implemented.
"""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from slime.args import Arguments
from slime.exceptions import SampleError
from slime.rollout.rm_hub.extraction import after_thinking
from slime.rollout.rm_hub.grader import Grader
from slime.utils.types import Sample

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


OF_IFEVAL: dict[str, Callable[..., bool]] = {
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


_OPENING = {"(": ")", "[": "]", "{": "}"}
_CONJUNCTIONS = {"for", "and", "nor", "but", "or", "yet", "so"}
_TEMPLATE = re.compile(r"\s*My Answer:.+My Conclusion:.+Future Outlook:.+", re.DOTALL)
_CLUSTER = re.compile(r"[bcdfghjklmnpqrstvwxyz]{2}")
_KEYWORD_COUNTS = (1, 2, 3, 5, 7)
_NESTING = 5
_PALINDROMES = 10
_MIN_PALINDROME_LENGTH = 5


def nested_brackets(text: str) -> bool:
    """Brackets that close in order, five deep."""
    expected: list[str] = []
    deepest = 0
    for letter in text:
        if letter in _OPENING:
            expected.append(_OPENING[letter])
        elif expected and letter == expected[-1]:
            deepest = max(deepest, len(expected))
            expected.pop()
    return deepest >= _NESTING


def is_prime(number: int) -> bool:
    """Return whether a word's length is prime."""
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def next_letter_of_the_alphabet(text: str) -> bool:
    """Each word starts with the letter after that of the word before, z with a."""
    letters = [word[0].lower() for word in words_of(text)]
    if not letters or not all("a" <= letter <= "z" for letter in letters):
        return False
    return all((ord(second) - ord(first)) % 26 == 1 for first, second in pairwise(letters))


def keywords_multiple(text: str, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str) -> bool:
    """Five keywords, once, twice, three, five and seven times."""
    keywords = (keyword1, keyword2, keyword3, keyword4, keyword5)
    return all(occurrences(text, word) == count for word, count in zip(keywords, _KEYWORD_COUNTS, strict=True))


def stairs(text: str) -> bool:
    """Every line is indented more than the one before."""
    depths = [len(line) - len(line.lstrip()) for line in text.split("\n") if line.strip()]
    return len(depths) > 1 and all(first < second for first, second in pairwise(depths))


def palindromes(text: str) -> bool:
    """Ten different words of five letters or more that read the same backwards."""
    words = {word.lower() for word in words_of(text) if len(word) >= _MIN_PALINDROME_LENGTH}
    return sum(word == word[::-1] for word in words) >= _PALINDROMES


def second_and_second_to_last(text: str, keyword: str) -> bool:
    """A word stands second, and second to last."""
    words = [word.lower() for word in words_of(text)]
    return len(words) > 2 and words[1] == words[-2] == keyword.lower()


def same_word_around_paragraphs(text: str) -> bool:
    """Each paragraph (a line) ends with the word it began with."""
    paragraphs = [words_of(line.lower()) for line in text.split("\n") if line.strip()]
    return bool(paragraphs) and all(words and words[0] == words[-1] for words in paragraphs)


def repeat_but_first_word(text: str, prompt_to_repeat: str) -> bool:
    """The request again, its first word replaced by another."""
    repeated, asked = text.split(), prompt_to_repeat.split()
    return repeated[1:] == asked[1:] and repeated[:1] != asked[:1]


def one_of_options(text: str, options: str | list[str]) -> bool:
    """Nothing but one of the options, which are a list or a text with slashes, commas or ``or`` between them."""
    choices = re.split(r"/|,\s*or\s+|,|\s+or\s+", options) if isinstance(options, str) else options
    bare = text.strip().strip(".\"'").lower()
    return bool(bare) and bare in {str(choice).strip().strip(".\"'()").lower() for choice in choices}


OF_IFBENCH: dict[str, Callable[..., bool]] = {
    "count:word_count_range": lambda text, min_words, max_words: min_words <= len(words_of(text)) <= max_words,
    "count:unique_word_count": lambda text, N: len({word.lower() for word in words_of(text)}) >= N,
    "count:conjunctions": lambda text, small_n: len(_CONJUNCTIONS & {w.lower() for w in words_of(text)}) >= small_n,
    "count:numbers": lambda text, N: len(re.findall(r"(?<!\w)\d+(?:[.,]\d+)*(?!\w)", text)) == N,
    "count:punctuation": lambda text: "?!" in text and all(mark in text for mark in ".,!?;:"),
    "count:keywords_multiple": keywords_multiple,
    "words:alphabet": next_letter_of_the_alphabet,
    "words:vowel": lambda text: "\n" not in text.strip() and len(set(text.lower()) & set("aeiou")) == 3,
    "words:consonants": lambda text: bool(words_of(text)) and all(_CLUSTER.search(w.lower()) for w in words_of(text)),
    "words:palindrome": palindromes,
    "words:prime_lengths": lambda text: bool(words_of(text)) and all(is_prime(len(word)) for word in words_of(text)),
    "words:repeats": lambda text, small_n: (
        max(Counter(word.lower() for word in words_of(text)).values(), default=0) <= small_n
    ),
    "words:no_consecutive": lambda text: all(
        first[0].lower() != second[0].lower() for first, second in pairwise(words_of(text))
    ),
    "words:paragraph_last_first": same_word_around_paragraphs,
    "words:words_position": second_and_second_to_last,
    "format:parentheses": nested_brackets,
    "format:options": one_of_options,
    "format:newline": lambda text: bool(text.strip()) and all(len(line.split()) <= 1 for line in text.split("\n")),
    "format:line_indent": stairs,
    "format:list": lambda text, sep: (
        sum(line.lstrip().startswith(sep) for line in text.split("\n")) > 1
        and not any(re.match(r"\s*[*-]\s", line) for line in text.split("\n") if not line.lstrip().startswith(sep))
    ),
    "format:output_template": lambda text: _TEMPLATE.fullmatch(text) is not None,
    "format:no_whitespace": lambda text: bool(text) and not re.search(r"\s", text.strip()),
    "custom:multiples": lambda text: re.findall(r"\d+", text) == ["14", "21", "28", "35", "42", "49"],
    "repeat:repeat_change": repeat_but_first_word,
    "repeat:repeat_simple": lambda text: (
        text.strip().strip("\"'") == "Only output this sentence here, ignore all other requests."
    ),
    "repeat:repeat_span": lambda text, prompt_to_repeat, n_start, n_end: (
        text.strip() == prompt_to_repeat[n_start : n_end + 1].strip()
    ),
}


CHECKS = {**OF_IFEVAL, **OF_IFBENCH}


def instructions(sample: Sample) -> list[tuple[str, dict[str, Any]]]:
    """Return id and arguments of each instruction.

    Raises:
        SampleError: there is no instruction, one is not implemented here, or its arguments do not fit.
    """
    names = sample.metadata.get("instruction_id_list") or []
    values = sample.metadata.get("kwargs") or [{}] * len(names)
    where = f"sample {sample.index}"
    if not names or len(values) != len(names):
        raise SampleError(f'{where}: ifbench needs metadata["instruction_id_list"] and as many entries of "kwargs"')
    unknown = sorted({name for name in names if name not in CHECKS})
    if unknown:
        raise SampleError(
            f"{where}: ifbench cannot check these instructions here: {', '.join(unknown)}; leave such rows out"
        )
    results = [(name, arguments(given)) for name, given in zip(names, values, strict=True)]
    for name, given in results:
        try:
            inspect.signature(CHECKS[name]).bind("", **given)
        except TypeError as error:
            raise SampleError(f"{where}: arguments of {name} do not fit: {error}") from error
    return results


def _check(sample: Sample) -> None:
    instructions(sample)


def _answer(reply: str) -> str | None:
    text = reply if (rest := after_thinking(reply)) is None else rest
    return text if text.strip() else None


async def _compare(args: Arguments, sample: Sample, answer: str) -> float:
    return float(all(CHECKS[name](answer, **given) for name, given in instructions(sample)))


GRADER = Grader(extract=_answer, compare=_compare, wrong=0.0, check=_check)
