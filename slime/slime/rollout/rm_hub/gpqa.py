"""``--rm-type gpqa``: 1 when the reply chooses the right letter of a multiple-choice question, else 0.

The right letter is ``metadata["correct_letter"]`` or the label. ``metadata["choices"]`` (texts in order, or letter to text)
says how many letters there are, four without it; a label that is the text of a choice stands for its letter.
"""

from __future__ import annotations

import re
from typing import Any

from slime.exceptions import SampleError
from slime.rollout.rm_hub.extraction import after_thinking, last_boxed
from slime.rollout.rm_hub.grader import Grader
from slime.utils.types import Sample

DEFAULT_LETTERS = "ABCD"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_STATED = re.compile(r"\b(?i:answer|choice|option)\b[\s*:]{0,9}(?:is[\s*:]{0,9})?\(?\*{0,2}([A-Z])\b")
_ALONE = re.compile(r"^[\s*(\[]{0,9}([A-Za-z])[\s*.)\]:]{0,9}$", re.MULTILINE)
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")


def chosen(reply: str) -> str | None:
    """Return the part of a reply that says the choice: a box, ``the answer is (C)``, or a line with one letter."""
    text = after_thinking(reply) or reply
    boxed = last_boxed(text)
    if boxed:
        return _WRAPPED.sub(r"\1", boxed)
    for pattern in (_STATED, _ALONE):
        found = pattern.findall(text)
        if found:
            return found[-1]
    return text.strip().rsplit("\n", 1)[-1].strip() or None


def letter_of(text: str, choices: dict[str, str]) -> str | None:
    """Return the letter that ``text`` is, or the letter of the choice that it spells out."""
    bare = text.strip().strip("()[].:*$ ").strip()
    if len(bare) == 1 and bare.upper() in choices:
        return bare.upper()
    spelled = [letter for letter, choice in choices.items() if choice and choice.lower() == bare.lower()]
    if len(spelled) == 1:
        return spelled[0]
    head = re.match(r"\(?([A-Za-z])[).:]\s", text.strip() + " ")
    return head[1].upper() if head and head[1].upper() in choices else None


def choices_of(sample: Sample) -> dict[str, str]:
    """Return letter to text of the choices; texts are empty when the sample has none."""
    choices = sample.metadata.get("choices")
    if isinstance(choices, dict):
        return {str(letter).upper(): str(text).strip() for letter, text in choices.items()}
    if choices:
        return {letter: str(text).strip() for letter, text in zip(_LETTERS, choices, strict=False)}
    return dict.fromkeys(sample.metadata.get("valid_letters") or DEFAULT_LETTERS, "")


def correct_letter(sample: Sample) -> str:
    """Return the right letter.

    Raises:
        SampleError: when neither metadata nor label name one of the choices.
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


async def _compare(args: Any, sample: Sample, answer: str) -> float:
    return float(letter_of(answer, choices_of(sample)) == correct_letter(sample))


GRADER = Grader(extract=chosen, compare=_compare, wrong=0.0, check=_check)
