"""``--rm-type gpqa``: 1 if the reply chooses the right letter of a multiple-choice question, else 0.

The right letter is ``metadata["correct_letter"]`` or the label; a label that is a choice's text means its letter.
``metadata["choices"]`` (texts in order, or letter to text) defines the letters, by default A to D. Only these letters
count as a choice, and the pronoun "I" does not.
"""

from __future__ import annotations

import re

from slime.args import Arguments
from slime.exceptions import SampleError
from slime.rollout.rm_hub.extraction import after_thinking, last_boxed
from slime.rollout.rm_hub.grader import Grader
from slime.utils.types import Sample

DEFAULT_LETTERS = "ABCD"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_STATEMENT = re.compile(r"\b(?:answer|choice|option)\b[\s*:]{0,9}(?:is\b[\s*:]{0,9})?", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?]\s|\n")
_SENTENCE_CHARACTERS = 120
_NEGATION = re.compile(r"\bnot\b|n['\u2019]t\b")
# Words after which a bare letter is still a choice; before any other word "A" and "I" start a sentence.
_AFTER_LETTER = "because|since|as|and|not|rather|instead|over|which|for"
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")


def reply_text(reply: str) -> str | None:
    """Return the text after the thinking, or the whole reply without thinking; None if it is empty."""
    return (after_thinking(reply) or reply).strip() or None


def chosen(text: str, choices: dict[str, str]) -> str:
    """Return the part of ``text`` with the choice: a box, ``the answer is (C)``, a one-letter line, or the last line."""
    boxed = last_boxed(text)
    if boxed:
        return _WRAPPED.sub(r"\1", boxed)
    letters = "".join(re.escape(letter) for letter in choices if len(letter) == 1)
    if letters:
        for statement in reversed(list(_STATEMENT.finditer(text))):
            after = text[statement.end() : statement.end() + _SENTENCE_CHARACTERS]
            letter = _stated(_SENTENCE_END.split(after, 1)[0], letters)
            if letter:
                return letter
        alone = re.findall(rf"(?im)^[\s*(\[]{{0,9}}([{letters}])[\s*.)\]:]{{0,9}}$", text)
        if alone:
            return alone[-1]
    return text.strip().rsplit("\n", 1)[-1].strip()


def _stated(sentence: str, letters: str) -> str | None:
    """Return the letter that follows ``answer``: directly, later in parentheses, or before other words."""
    start = re.match(rf"\(?\*{{0,2}}([{letters}])\b(?!['\u2019])", sentence)
    if start and not re.match(rf"\s+(?!(?:{_AFTER_LETTER})\b)[a-z]", sentence[start.end() :]):
        return start[1]
    wrapped = re.search(rf"\(\*{{0,2}}([{letters}])\*{{0,2}}\)", sentence)
    if wrapped and not _NEGATION.search(sentence, 0, wrapped.start()):
        return wrapped[1]
    return start[1] if start and start[1] != "I" else None


def letter_of(text: str, choices: dict[str, str]) -> str | None:
    """Return ``text`` as a letter, or the letter of the choice whose text it is."""
    bare = text.strip().strip("()[].:*$ ").strip()
    if len(bare) == 1 and bare.upper() in choices:
        return bare.upper()
    spelled = [letter for letter, choice in choices.items() if choice and choice.lower() == bare.lower()]
    if len(spelled) == 1:
        return spelled[0]
    head = re.match(r"\(?([A-Za-z])[).:]\s", text.strip() + " ")
    return head[1].upper() if head and head[1].upper() in choices else None


def choices_of(sample: Sample) -> dict[str, str]:
    """Return the choices as letter to text; texts are empty if the sample has none."""
    choices = sample.metadata.get("choices")
    if isinstance(choices, dict):
        return {str(letter).upper(): str(text).strip() for letter, text in choices.items()}
    if choices:
        return {letter: str(text).strip() for letter, text in zip(_LETTERS, choices, strict=False)}
    return dict.fromkeys(sample.metadata.get("valid_letters") or DEFAULT_LETTERS, "")


def correct_letter(sample: Sample) -> str:
    """Return the right letter.

    Raises:
        SampleError: neither metadata nor label name one of the choices.
    """
    choices = choices_of(sample)
    label = sample.metadata.get("correct_letter") or sample.label
    letter = letter_of(str(label), choices) if label is not None else None
    if letter is None:
        raise SampleError(
            f"sample {sample.index}: label {label!r} is none of the choices {', '.join(choices)}; "
            'give a letter in --label-key or metadata["correct_letter"]'
        )
    return letter


def _check(sample: Sample) -> None:
    correct_letter(sample)


async def _compare(args: Arguments, sample: Sample, answer: str) -> float:
    choices = choices_of(sample)
    return float(letter_of(chosen(answer, choices), choices) == correct_letter(sample))


GRADER = Grader(extract=reply_text, compare=_compare, wrong=0.0, check=_check)
