"""The suite ``retention``: what a model could do before it was personalised, so that a loss of it shows.

* ``arithmetic``: sums, differences and products; then with parentheses; then with larger numbers
* ``word_problem``: the held-out problems of the tiny model, of one step; at higher levels two such steps
* ``order``: the smallest, the largest, or the middle one of some numbers
* ``gsm8k``: as many questions of a file, with ``--gsm8k FILE``; each seed takes others

Guarantee: a reply passes by its last number (or the one in its box) alone, whatever its style.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from random import Random

from measure import Item, MeasureError, gsm8k_items
from word_problems.problems import draw_short

from evaluation.answers import last_number, number
from evaluation.case import Case, EvalError, Family, Grade, draw_cases
from evaluation.talk import Talk
from evaluation.tool_worlds import calculate

ALL = 1_000_000
NAME = "retention"


@dataclass(frozen=True, slots=True)
class Question:
    """A question with the number that answers it."""

    text: str
    answer: Decimal


def draw_arithmetic(rng: Random, level: int) -> Question:
    """Return an expression of two or three numbers."""
    if level == 1:
        expression = f"{rng.randint(2, 30)} {rng.choice('+-')} {rng.randint(2, 30)}"
    elif level == 2:
        expression = f"{rng.randint(2, 12)} * ({rng.randint(2, 20)} {rng.choice('+-')} {rng.randint(2, 20)})"
    else:
        expression = f"{rng.randint(100, 999)} {rng.choice('+-')} {rng.randint(11, 99)} * {rng.randint(2, 9)}"
    return Question(f"What is {expression}?", Decimal(calculate(expression)))


def draw_word_problem(rng: Random, level: int) -> Question:
    """Return a held-out problem of the tiny model; at higher levels its result is changed once more."""
    problem = draw_short(rng, "held")
    if level == 1:
        return Question(problem.question, Decimal(problem.answer))
    more, factor = rng.randint(3, 15), rng.randint(2, 5)
    step, answer = (
        (f"Add {more} to that number.", problem.answer + more)
        if level == 2
        else (f"Multiply that number by {factor} and add {more}.", problem.answer * factor + more)
    )
    return Question(f"{problem.question} {step} What is the result?", Decimal(answer))


def draw_order(rng: Random, level: int) -> Question:
    """Return a question about the order of three, five or seven numbers."""
    values = rng.sample(range(10, 1000), 1 + 2 * level)
    word, answer = rng.choice([("smallest", min(values)), ("largest", max(values)), ("median", sorted(values)[level])])
    return Question(f"What is the {word} of these numbers: {', '.join(map(str, values))}?", Decimal(answer))


FAMILIES: dict[str, Family] = {
    "arithmetic": draw_arithmetic,
    "word_problem": draw_word_problem,
    "order": draw_order,
}


class Retention:
    """See `evaluation.case.Suite`."""

    name = NAME

    def __init__(self, gsm8k: Path | None = None) -> None:
        """Read the file.

        Raises:
            EvalError: it is not a GSM8K file, or an answer in it is not a number.
        """
        self._questions: list[Question] = []
        if gsm8k is None:
            return
        try:
            self._questions = [_question(item, gsm8k) for item in gsm8k_items(gsm8k, ALL)]
        except MeasureError as error:
            raise EvalError(f"--gsm8k: {error}") from error
        if not self._questions:
            raise EvalError(f"--gsm8k {gsm8k}: the file has no questions")
        Random("gsm8k").shuffle(self._questions)

    def cases(self, seed: int, count: int) -> Sequence[Case]:
        """Return ``count`` generated questions, and as many of the file; another seed goes on where this one ends."""
        generated = draw_cases(self.name, FAMILIES, seed, count)
        questions = self._questions
        return generated + [
            Case(self.name, "gsm8k", 1, seed, count + place, questions[(seed * count + place) % len(questions)])
            for place in range(min(count, len(questions)))
        ]

    async def open(self) -> None:
        """Nothing to prepare."""

    async def play(self, case: Case, talk: Talk) -> Grade:
        """Ask the question and compare the number."""
        question: Question = case.problem
        said = await talk.ask(question.text)
        if said.defect:
            return Grade(said.defect)
        result = last_number(said.text)
        if result is None:
            return Grade("no_number", f"the reply has no number; the answer is {question.answer}")
        return Grade() if result == question.answer else Grade("wrong_number", f"{result}, not {question.answer}")

    async def close(self) -> None:
        """Nothing to release."""


def _question(item: Item, path: Path) -> Question:
    answer = number(item.answer)
    if answer is None:
        raise EvalError(f"--gsm8k {path}: the answer {item.answer!r} to {item.question[:60]!r} is not a number")
    return Question(item.question, answer)
