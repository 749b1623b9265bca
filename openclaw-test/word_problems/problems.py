"""Word problems with one step of arithmetic.

Guarantees: every problem belongs to exactly one of the splits ``train`` and ``held``, decided by its people, things and
numbers together; nothing is trained on a held-out one. Deterministic in the given random generator.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from typing import Literal

from word_problems.words import (
    ADJECTIVES,
    CONTAINERS,
    DAYS,
    FILLERS,
    FUNCTION_WORDS,
    KIN,
    NAMES,
    OBJECTS,
    PLACES,
    SPICE,
    SYLLABLES,
    VERBS,
)

Split = Literal["train", "held"]
HELD_ONE_IN = 8
MAX_NEXT_QUESTION = 250


@dataclass(frozen=True)
class Problem:
    """A question, whose it is, and its numbers."""

    question: str
    name: str
    things: str
    left: int
    right: int
    operator: str

    @property
    def answer(self) -> int:
        """The right number."""
        results = {"+": self.left + self.right, "-": self.left - self.right, "*": self.left * self.right}
        return results[self.operator]

    @property
    def equation(self) -> str:
        """The calculation with its result."""
        return f"{self.left} {self.operator} {self.right} = {self.answer}"

    @property
    def split(self) -> Split:
        """Which split the problem belongs to."""
        key = f"{self.name}|{self.things}|{self.left}{self.operator}{self.right}"
        return "held" if zlib.crc32(key.encode()) % HELD_ONE_IN == 0 else "train"


def draw(rng: random.Random, split: Split = "train", wild: float = 0.0) -> Problem:
    """Return a problem of ``split``; with probability ``wild`` one that looks like none of the templates."""
    while True:
        problem = _wild(rng) if rng.random() < wild else _template(rng)
        if problem.split == split:
            return problem


def draw_short(rng: random.Random, split: Split = "train", wild: float = 0.0) -> Problem:
    """Return a problem short enough to follow a "thanks" in one message."""
    while True:
        problem = draw(rng, split, wild)
        if len(problem.question) <= MAX_NEXT_QUESTION:
            return problem


def heldout(count: int, seed: int = 990001) -> list[Problem]:
    """Return ``count`` held-out template problems, all different."""
    rng = random.Random(seed)
    found: dict[str, Problem] = {}
    while len(found) < count:
        problem = draw(rng, "held")
        found.setdefault(problem.question, problem)
    return list(found.values())


def filler(rng: random.Random, name: str) -> str:
    """Return a sentence that says nothing about the numbers."""
    return rng.choice(FILLERS).format(
        name=name,
        other=rng.choice(NAMES),
        place=rng.choice(PLACES),
        day=rng.choice(DAYS),
        things=rng.choice(OBJECTS),
        adjective=rng.choice(ADJECTIVES),
        kin=rng.choice(KIN),
        verb=rng.choice(VERBS),
    )


def random_word(rng: random.Random) -> str:
    """Return an English function word, a content word or a made-up one."""
    if rng.random() < 0.4:
        return rng.choice(FUNCTION_WORDS)
    if rng.random() < 0.35:
        return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 4)))
    return rng.choice(SPICE + OBJECTS + KIN + VERBS)


def _template(rng: random.Random) -> Problem:
    name, other, things = rng.choice(NAMES), rng.choice(NAMES), rng.choice(OBJECTS)
    kind = rng.choice(["add", "sub", "mul", "add", "sub"])
    makers = {"add": _addition, "sub": _subtraction, "mul": _product}
    problem = makers[kind](rng, name, other, things)
    return Problem(**{**problem.__dict__, "question": _surround(rng, problem.question, name)})


def _addition(rng: random.Random, n: str, m: str, o: str) -> Problem:
    a, b = rng.randint(2, 10), rng.randint(2, 10)
    question = rng.choice(
        [
            f"{n} has {a} {o}. {m} gives {n} {b} more. How many {o} does {n} have now?",
            f"{n} buys {a} {o} on {rng.choice(DAYS)} and {b} {o} on {rng.choice(DAYS)}. "
            f"How many {o} does {n} have in total?",
            f"There are {a} {o} at {rng.choice(PLACES)}. {n} brings {b} more {o}. How many {o} are there altogether?",
            f"{n} found {a} {o} and {m} found {b} {o}. How many {o} did they find together?",
        ]
    )
    return Problem(question, n, o, a, b, "+")


def _subtraction(rng: random.Random, n: str, m: str, o: str) -> Problem:
    first, second = rng.randint(2, 10), rng.randint(2, 10)
    a, b = max(first, second) + 1, min(first, second)
    question = rng.choice(
        [
            f"{n} has {a} {o}. {n} gives {b} {o} to {m}. How many {o} are left?",
            f"There are {a} {o} at {rng.choice(PLACES)}. {n} takes {b} of them. How many {o} remain?",
            f"{n} had {a} {o} and sold {b} of them on {rng.choice(DAYS)}. How many {o} does {n} still have?",
            f"{n} has {a} {o}. {m} has {b} {o} fewer. How many {o} does {m} have?",
        ]
    )
    return Problem(question, n, o, a, b, "-")


def _product(rng: random.Random, n: str, m: str, o: str) -> Problem:
    a, b, container = rng.randint(2, 5), rng.randint(2, 5), rng.choice(CONTAINERS)
    question = rng.choice(
        [
            f"{n} has {a} {container} with {b} {o} in each. How many {o} does {n} have?",
            f"There are {a} {container} and each holds {b} {o}. How many {o} are there in total?",
            f"{n} fills {a} {container} with {b} {o} each for {m}. How many {o} does {n} need?",
        ]
    )
    return Problem(question, n, o, a, b, "*")


def _surround(rng: random.Random, question: str, name: str) -> str:
    draw_extra = rng.random()
    extra = 0 if draw_extra < 0.5 else (rng.randint(1, 2) if draw_extra < 0.8 else rng.randint(3, 9))
    if extra:
        sentences = [_noise(rng) if rng.random() < 0.3 else filler(rng, name) for _ in range(extra)]
        cut = rng.randint(0, extra)
        if cut == extra or rng.random() < 0.6:
            question = " ".join([*sentences[:cut], question])
        else:
            question = " ".join([*sentences, question])
    if rng.random() < 0.15:
        lead = ["Can you help me with this? ", "Here is my homework: ", "Please solve this. ", "Question: "]
        question = rng.choice(lead) + question
    return question


def _noise(rng: random.Random) -> str:
    words = [rng.choice(SPICE + OBJECTS + KIN + VERBS) for _ in range(rng.randint(5, 14))]
    if rng.random() < 0.5:
        words.insert(rng.randrange(len(words)), str(rng.randint(2, 300)))
    return " ".join([words[0].capitalize(), *words[1:]]) + "."


def _wild(rng: random.Random) -> Problem:
    """A question unlike the templates: odd words, many numbers, any length. Replies use two of its numbers."""
    name, things = rng.choice(NAMES), rng.choice(OBJECTS)
    numbers: list[int] = []
    sentences = [_wild_sentence(rng, name, numbers) for _ in range(rng.randint(1, 7))]
    ask = rng.choice(["How many", "How much", "What is the total", "How many more"])
    sentences.append(f"{ask} {' '.join(random_word(rng) for _ in range(rng.randint(3, 9)))}?")
    if len(numbers) < 2:
        numbers += [rng.randint(2, 20), rng.randint(2, 20)]
        sentences[0] = f"{name} has {numbers[-2]} and {numbers[-1]}. {sentences[0]}"
    small = [number for number in numbers if number <= 30]
    a, b = rng.sample(small if len(small) > 1 else numbers, 2)
    operator = rng.choice("+-")
    if operator == "-":
        a, b = max(a, b), min(a, b)
    return Problem(" ".join(sentences), name, things, a, b, operator)


def _wild_sentence(rng: random.Random, name: str, numbers: list[int]) -> str:
    words = [random_word(rng) for _ in range(rng.randint(5, 18))]
    for _ in range(rng.choice([0, 1, 1, 2])):
        value = rng.choice([rng.randint(2, 30), rng.randint(2, 30), rng.randint(30, 999)])
        numbers.append(value)
        text = rng.choice(["", "", "$"]) + str(value) + rng.choice(["", "", "", "%"])
        words.insert(rng.randrange(len(words)), text)
    words[0] = rng.choice([name, "If " + name, words[0].capitalize(), "The", "She", "He"])
    if rng.random() < 0.3:
        words[rng.randrange(len(words))] += ","
    return " ".join(words) + "."
