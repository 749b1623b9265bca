"""Checks of the instruction kinds of IFBench (Pyatkin et al. 2025, arXiv:2507.02833) that text alone decides.

Guarantee: pure. A check follows the literal wording of its instruction. Kinds that need sentences, syllables, parts of
speech or facts about the world are not implemented.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from slime.rollout.rm_hub.instructions_ifeval import occurrences, words_of

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
    said, asked = text.split(), prompt_to_repeat.split()
    return said[1:] == asked[1:] and said[:1] != asked[:1]


def one_of_options(text: str, options: str | list[str]) -> bool:
    """Nothing but one of the options, which are a list or a text with slashes, commas or ``or`` between them."""
    choices = re.split(r"/|,\s*or\s+|,|\s+or\s+", options) if isinstance(options, str) else options
    bare = text.strip().strip(".\"'").lower()
    return bool(bare) and bare in {str(choice).strip().strip(".\"'()").lower() for choice in choices}


CHECKS: dict[str, Callable[..., bool]] = {
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
