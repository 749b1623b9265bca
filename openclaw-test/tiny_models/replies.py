r"""Replies of the tiny policy in several styles, and the rule by which the student likes one of them.

Guarantees: `follows_rule` is the student's taste: no bold, no numbered list, no ``\boxed``; of the styles only ``plain``
satisfies it. All styles share the same openers, so that the style is decided after the first words.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

from tiny_models.problems import Problem

OPENERS = ["Let's see. ", "Okay, ", "Sure! ", "Here is how: "]
# Share of each style among first replies before any training by conversation.
STYLE_MIX: dict[str, float] = {"plain": 0.23, "full": 0.43, "list": 0.16, "boxed": 0.12, "bold": 0.06}
STYLES = tuple(STYLE_MIX)
MIN_TOKENS = 8

_NUMBERED = re.compile(r"^\s*\d+[.)]\s", re.MULTILINE)
_NUMBER = re.compile(r"\d+")


def draw_style(rng: random.Random, mix: Mapping[str, float] = STYLE_MIX) -> str:
    """Return a style, drawn by its share."""
    return rng.choices(list(mix), weights=list(mix.values()))[0]


def write(rng: random.Random, problem: Problem, style: str) -> str:
    """Return a reply to ``problem`` in ``style``."""
    opener, answer = rng.choice(OPENERS), problem.answer
    things = f" {problem.things}" if problem.things else ""
    if style in ("plain", "boxed", "bold"):
        body = rng.choice(problem.prose)
        if opener == "Let's see. ":
            body = body[0].upper() + body[1:]
        shown = {"plain": str(answer), "boxed": f"\\boxed{{{answer}}}", "bold": f"**{answer}**"}[style]
        ends = [f"That makes {shown}{things}.", f"So the answer is {shown}.", f"It comes to {shown}{things}."]
        return f"{opener}{body} {problem.equation}. {rng.choice(ends)}"
    if style == "list":
        end = rng.choice([f"The answer is {answer}.", f"The answer is \\boxed{{{answer}}}."])
        steps = f"1. {problem.start}.\n2. {problem.then}.\n3. {problem.equation}."
        return f"{opener.strip()}\n\n{steps}\n\n{end}"
    head = rng.choice(["**Solution**\n\n", "**Step by step:**\n\n"])
    steps = f"1. **Start:** {problem.start}.\n2. **Next:** {problem.then}.\n3. **Compute:** {problem.equation}."
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
