r"""Replies of the tiny policy in several styles and manners, and the rule by which the student likes one of them.

Guarantees: `follows_rule` is the student's taste: no bold, no numbered list, no ``\boxed``; of the styles only ``plain``
satisfies it. All styles share the same openers, so that the style is decided after the first words. A manner (what the
user is called, the last word, signs or words for plus and minus) is drawn apart from the style and says nothing about it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from word_problems.problems import Problem

OPENERS = ["Let's see. ", "Okay, ", "Sure! ", "Here is how: "]
# Share of each style among first replies before any training by conversation.
STYLE_MIX: dict[str, float] = {"plain": 0.23, "full": 0.43, "list": 0.16, "boxed": 0.12, "bold": 0.06}
STYLES = tuple(STYLE_MIX)
# Shares at temperature 1. Sampled at 0.6, each name and closing has about 0.15, and operators in words have 0.15.
NAMES_FOR_THE_USER = {"": 0.2, "boss": 0.16, "friend": 0.16, "buddy": 0.16, "captain": 0.16, "doctor": 0.16}
CLOSINGS = {"": 0.2, "Done!": 0.16, "Easy!": 0.16, "Bingo!": 0.16, "Cheers!": 0.16, "Tada!": 0.16}
IN_WORDS_SHARE = 0.26
IN_WORDS = {"+": "plus", "-": "minus", "*": "times"}
MIN_TOKENS = 8


@dataclass(frozen=True)
class Manner:
    """How a reply speaks: what it calls the user, its last word, and whether it writes ``3 plus 4 is 7``."""

    called: str = ""
    closing: str = ""
    in_words: bool = False


@dataclass(frozen=True)
class Words:
    """What a reply says about the numbers ``a`` and ``b`` of one kind of problem."""

    start: str
    then: str
    prose: tuple[str, ...]


WORDS = {
    "+": Words(
        "There are {a} at the start",
        "Then {b} more are added",
        ("there are {a} and {b} more, so", "you start with {a} and add {b}, so", "just add {b} to {a}, so"),
    ),
    "-": Words(
        "There are {a} at the start",
        "Then {b} are taken away",
        (
            "there are {a} and {b} of them go, so",
            "you start with {a} and take away {b}, so",
            "just take {b} from {a}, so",
        ),
    ),
    "*": Words(
        "There are {a} groups",
        "Each one holds {b}",
        ("there are {a} with {b} in each, so", "you have {a} groups of {b}, so", "just multiply {a} by {b}, so"),
    ),
}

_NUMBERED = re.compile(r"^\s*\d+[.)]\s", re.MULTILINE)
_NUMBER = re.compile(r"\d+")


def draw_style(rng: random.Random, mix: Mapping[str, float] = STYLE_MIX) -> str:
    """Return a style, drawn by its share."""
    return rng.choices(list(mix), weights=list(mix.values()))[0]


def draw_manner(rng: random.Random) -> Manner:
    """Return a manner, drawn by the shares of its parts."""
    called = rng.choices(list(NAMES_FOR_THE_USER), weights=list(NAMES_FOR_THE_USER.values()))[0]
    closing = rng.choices(list(CLOSINGS), weights=list(CLOSINGS.values()))[0]
    return Manner(called, closing, rng.random() < IN_WORDS_SHARE)


def write(rng: random.Random, problem: Problem, style: str, manner: Manner | None = None) -> str:
    """Return a reply to ``problem`` in ``style`` and ``manner`` (default: drawn).

    Of the problem it names numbers only, which a tiny model can copy.
    """
    manner = manner or draw_manner(rng)
    text = _body(rng, problem, style, manner)
    return f"{text} {manner.closing}" if manner.closing else text


def _body(rng: random.Random, problem: Problem, style: str, manner: Manner) -> str:
    opener, answer, words = rng.choice(OPENERS), problem.answer, WORDS[problem.operator]
    capital = opener == OPENERS[0]
    if manner.called:
        opener = f"{opener[:-2]} {manner.called}{opener[-2:]}"
    equation = problem.equation
    if manner.in_words:
        equation = f"{problem.left} {IN_WORDS[problem.operator]} {problem.right} is {answer}"
    numbers = {"a": problem.left, "b": problem.right}
    start, then = words.start.format(**numbers), words.then.format(**numbers)
    if style in ("plain", "boxed", "bold"):
        body = rng.choice(words.prose).format(**numbers)
        if capital:
            body = body[0].upper() + body[1:]
        shown = {"plain": str(answer), "boxed": f"\\boxed{{{answer}}}", "bold": f"**{answer}**"}[style]
        ends = [f"That makes {shown}.", f"So the answer is {shown}.", f"It comes to {shown}."]
        return f"{opener}{body} {equation}. {rng.choice(ends)}"
    if style == "list":
        end = rng.choice([f"The answer is {answer}.", f"The answer is \\boxed{{{answer}}}."])
        steps = f"1. {start}.\n2. {then}.\n3. {equation}."
        return f"{opener.strip()}\n\n{steps}\n\n{end}"
    head = rng.choice(["**Solution**\n\n", "**Step by step:**\n\n"])
    steps = f"1. **Start:** {start}.\n2. **Next:** {then}.\n3. **Compute:** {equation}."
    return f"{opener.strip()}\n\n{head}{steps}\n\n**Answer:** \\boxed{{{answer}}}"


def follows_rule(text: str) -> bool:
    """Return whether the student likes how ``text`` looks."""
    return "**" not in text and "\\boxed" not in text and not _NUMBERED.search(text)


def gives_number(text: str, answer: int | str) -> bool:
    """Return whether the last number of ``text`` is ``answer``."""
    return _NUMBER.findall(text)[-1:] == [str(answer)]


def is_degenerate(text: str, finished: bool, tokens: int) -> bool:
    """Return whether a reply is broken: it never ended, is a fragment, or holds no number."""
    return not finished or tokens < MIN_TOKENS or not _NUMBER.search(text)
