"""Problems as people type them into a chat: in a few words, about themselves, without care, or as a bare sum.

Guarantees: deterministic in the random generator; each problem belongs to one split, like those of `problems`.
"""

from __future__ import annotations

import random

from word_problems.problems import Problem, Split
from word_problems.words import CONTAINERS, EVERYDAY_NAMES, EVERYDAY_OBJECTS, KIN, NAMES, OBJECTS, SYLLABLES

MADE_UP, MYSELF = 0.1, 0.35
SIGNS = {"+": ("+", "plus", "and"), "-": ("-", "minus"), "*": ("*", "x", "times")}


def draw_everyday(rng: random.Random, split: Split = "train") -> Problem:
    """Return a problem of ``split`` in everyday words."""
    makers = {"+": _more, "-": _fewer, "*": _each}
    while True:
        operator = rng.choice("++--*")
        a, b = _numbers(rng, operator)
        problem = _bare(rng, a, b, operator) if rng.random() < 0.3 else makers[operator](rng, a, b)
        if problem.split == split:
            return problem


def careless(rng: random.Random, text: str) -> str:
    """Return a text as people type it: at times in lower case, without its last sign, or with a slip."""
    kind = rng.random()
    if kind < 0.2:
        return text.lower()
    if kind < 0.35:
        return text.lower().rstrip(".?!")
    if kind < 0.42 and len(text) > 12:
        place = rng.randrange(1, len(text) - 1)
        return text if text[place].isdigit() else text[:place] + text[place + 1 :]
    return text


def _numbers(rng: random.Random, operator: str) -> tuple[int, int]:
    if operator == "*":
        return rng.randint(2, 9), rng.randint(2, 9)
    a, b = rng.randint(1, 12), rng.randint(1, 12)
    return (a, b) if operator == "+" else (max(a, b) + 1, min(a, b))


def _bare(rng: random.Random, a: int, b: int, operator: str) -> Problem:
    sign = rng.choice(SIGNS[operator])
    words = f"{a} {sign} {b}" if sign.isalpha() or rng.random() < 0.6 else f"{a}{sign}{b}"
    equals = "?" if sign.isalpha() else rng.choice(["=", " =", " = ?", "=?"])
    question = rng.choice(
        [
            f"What is {words}?",
            f"What's {words}?",
            f"How much is {words}?",
            f"{words}{equals}",
            words,
            f"{words}?",
            f"Can you calculate {words}?",
            f"Please compute {words}.",
            f"Tell me what {words} is.",
        ]
    )
    return Problem(_typed(rng, question), "you", "", a, b, operator)


def _more(rng: random.Random, a: int, b: int) -> Problem:
    n, o, m = _person(rng), _things(rng), rng.choice(NAMES + EVERYDAY_NAMES)
    has, do = ("have", "do") if n == "I" else ("has", "does")
    verb = rng.choice(["get", "buy", "find"]) + ("" if n == "I" else "s")
    question = rng.choice(
        [
            f"{n} {has} {a} {o} and {verb} {b} more. How many {o} {do} {n} have?",
            f"{n} {has} {a} {o} and {verb} {b} more. How many?",
            f"{n} {has} {a} {o}. {m} gives {'me' if n == 'I' else n} {b} more. How many {do} {n} have now?",
            f"If {n} {has} {a} {o} and {verb} {b} more, how many {o} {do} {n} have?",
            f"{n} {has} {a} {o} and {verb} {b}. How many now?",
            f"{n} {has} {a} {o}, then {verb} {b} more {o}. How many in total?",
            f"There are {a} {o}. {b} more come. How many {o} are there?",
            f"There are {a} {o} and {b} more arrive, how many are there now?",
            f"{m} is {a} years old. Her {rng.choice(KIN)} is {b} years older. How old is the {rng.choice(KIN)}?",
        ]
    )
    return Problem(_typed(rng, question), n, o, a, b, "+")


def _fewer(rng: random.Random, a: int, b: int) -> Problem:
    n, o, m = _person(rng), _things(rng), rng.choice(NAMES + EVERYDAY_NAMES)
    has, do = ("have", "do") if n == "I" else ("has", "does")
    verb = rng.choice(["lose", "eat", "sell", "use"]) + ("" if n == "I" else "s")
    give = "give" if n == "I" else "gives"
    question = rng.choice(
        [
            f"{n} {has} {a} {o} and {verb} {b}. How many {o} {do} {n} have?",
            f"{n} {has} {a} {o} and {verb} {b}. How many are left?",
            f"{n} {has} {a} {o} and {give} {b} away. How many?",
            f"If {n} {has} {a} {o} and {verb} {b}, how many {o} are left?",
            f"{n} {has} {a} {o}. {n} {give} {b} to {m}. How many {o} {do} {n} still have?",
            f"{n} {has} {a} {o}, then {give} {m} {b} of them. How many now?",
            f"There are {a} {o}. {b} of them are gone. How many {o} are left?",
            f"There were {a} {o} and {m} took {b}, how many are left?",
            f"{n} {has} {a} dollars and {'buy' if n == 'I' else 'buys'} a cake for {b}. How much is left?",
        ]
    )
    return Problem(_typed(rng, question), n, o, a, b, "-")


def _each(rng: random.Random, a: int, b: int) -> Problem:
    n, o, container = _person(rng), _things(rng), rng.choice(CONTAINERS)
    has, do = ("have", "do") if n == "I" else ("has", "does")
    question = rng.choice(
        [
            f"{n} {has} {a} {container} with {b} {o} each. How many {o} {do} {n} have?",
            f"{n} {has} {a} {container} of {b} {o}. How many {o} is that?",
            f"{a} {container} with {b} {o} each. How many {o}?",
            f"If {n} {has} {a} {container} and each has {b} {o}, how many {o} are there?",
            f"There are {a} {container} with {b} {o} in each. How many {o} are there?",
        ]
    )
    return Problem(_typed(rng, question), n, o, a, b, "*")


def _person(rng: random.Random) -> str:
    if rng.random() < MYSELF:
        return "I"
    if rng.random() < MADE_UP:
        return _made_up(rng).capitalize()
    return rng.choice(NAMES + EVERYDAY_NAMES)


def _things(rng: random.Random) -> str:
    if rng.random() < MADE_UP:
        return _made_up(rng) + "s"
    return rng.choice(OBJECTS + EVERYDAY_OBJECTS)


def _made_up(rng: random.Random) -> str:
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3)))


def _typed(rng: random.Random, question: str) -> str:
    return careless(rng, question) if rng.random() < 0.4 else question
