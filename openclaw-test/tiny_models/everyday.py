"""Problems as people type them into a chat: in a few words, about themselves, without care, or as a bare sum.

Guarantees: deterministic in the random generator; each problem belongs to one split, like those of `problems`.
"""

from __future__ import annotations

import random

from tiny_models.problems import Problem, Split
from tiny_models.words import CONTAINERS, EVERYDAY_NAMES, EVERYDAY_OBJECTS, NAMES, OBJECTS, SYLLABLES

MADE_UP, NOBODY = 0.1, 0.25
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
    texts = {
        "+": (f"Then {b} more are added", f"you start with {a} and add {b}, so", f"just add {b} to {a}, so"),
        "-": (f"Then {b} are taken away", f"you start with {a} and take away {b}, so", f"just take {b} from {a}, so"),
        "*": (f"Each one holds {b}", f"you have {a} groups of {b}, so", f"just multiply {a} by {b}, so"),
    }
    then, *prose = texts[operator]
    start = f"There are {a} groups" if operator == "*" else f"You start with {a}"
    return Problem(_typed(rng, question), "you", "", a, b, operator, start, then, tuple(prose))


def _more(rng: random.Random, a: int, b: int) -> Problem:
    n, do, o, m = _person(rng), "does", _things(rng), rng.choice(NAMES + EVERYDAY_NAMES)
    if rng.random() < 0.35:
        n, do = "I", "do"
    has, gets = ("have", "get") if n == "I" else ("has", "gets")
    verb = rng.choice([gets, "buy" if n == "I" else "buys", "find" if n == "I" else "finds"])
    question = rng.choice(
        [
            f"{n} {has} {a} {o} and {verb} {b} more. How many {o} {do} {n} have?",
            f"{n} {has} {a} {o}. {m} gives {'me' if n == 'I' else n} {b} more. How many {do} {n} have now?",
            f"If {n} {has} {a} {o} and {verb} {b} more, how many {o} {do} {n} have?",
            f"{n} {has} {a} {o} and {verb} {b}. How many now?",
            f"{n} {has} {a} {o}, then {verb} {b} more {o}. How many in total?",
            f"{n} {has} {a} {o} and {verb} {b} {o}. How many {o} {do} {n} have now?",
        ]
    )
    if rng.random() < NOBODY:
        question = rng.choice(
            [
                f"There are {a} {o}. {b} more come. How many {o} are there?",
                f"There are {a} {o} and {b} more arrive, how many are there now?",
            ]
        )
        n = ""
    prose = (
        f"{_told(n)} {has} {a} {o} and {gets} {b} more, so" if n else f"there are {a} {o} and {b} more come, so",
        f"you start with {a} {o} and add {b}, so",
        f"just add {b} to {a}, so",
    )
    start = _start(n, f"{a} {o}")
    return Problem(_typed(rng, question), n, o, a, b, "+", start, f"Then {b} more are added", prose)


def _fewer(rng: random.Random, a: int, b: int) -> Problem:
    n, do, o, m = _person(rng), "does", _things(rng), rng.choice(NAMES + EVERYDAY_NAMES)
    if rng.random() < 0.35:
        n, do = "I", "do"
    has, loses = ("have", "lose") if n == "I" else ("has", "loses")
    verb = rng.choice([loses, *(("eat", "sell", "use") if n == "I" else ("eats", "sells", "uses"))])
    give = "give" if n == "I" else "gives"
    question = rng.choice(
        [
            f"{n} {has} {a} {o} and {verb} {b}. How many {o} {do} {n} have?",
            f"{n} {has} {a} {o} and {verb} {b}. How many are left?",
            f"If {n} {has} {a} {o} and {verb} {b}, how many {o} are left?",
            f"{n} {has} {a} {o}. {n} {give} {b} to {m}. How many {o} {do} {n} still have?",
            f"{n} {has} {a} {o}, then {give} {m} {b} of them. How many now?",
            f"{n} {has} {a} {o} and {verb} {b} {o}. How many {o} {do} {n} have now?",
        ]
    )
    if rng.random() < NOBODY:
        question = rng.choice(
            [
                f"There are {a} {o}. {b} of them are gone. How many {o} are left?",
                f"There were {a} {o} and {m} took {b}, how many are left?",
            ]
        )
        n = ""
    prose = (
        f"{_told(n)} {has} {a} {o} and {loses} {b}, so" if n else f"there are {a} {o} and {b} go, so",
        f"you start with {a} {o} and take away {b}, so",
        f"just take {b} from {a}, so",
    )
    start = _start(n, f"{a} {o}")
    return Problem(_typed(rng, question), n, o, a, b, "-", start, f"Then {b} are taken away", prose)


def _each(rng: random.Random, a: int, b: int) -> Problem:
    n, o, container = _person(rng), _things(rng), rng.choice(CONTAINERS)
    has, do = "has", "does"
    if rng.random() < 0.35:
        n, has, do = "I", "have", "do"
    question = rng.choice(
        [
            f"{n} {has} {a} {container} with {b} {o} each. How many {o} {do} {n} have?",
            f"{n} {has} {a} {container} of {b} {o}. How many {o} is that?",
            f"If {n} {has} {a} {container} and each has {b} {o}, how many {o} are there?",
        ]
    )
    if rng.random() < NOBODY:
        question, n = f"There are {a} {container} with {b} {o} in each. How many {o} are there?", ""
    prose = (
        f"{_told(n)} {has} {a} {container} with {b} {o} each, so" if n else f"there are {a} groups of {b} {o}, so",
        f"you have {a} groups of {b} {o}, so",
        f"just multiply {a} by {b}, so",
    )
    start = f"There are {a} {container}"
    return Problem(_typed(rng, question), n, o, a, b, "*", start, f"Each one holds {b} {o}", prose)


def _person(rng: random.Random) -> str:
    if rng.random() < MADE_UP:
        return _made_up(rng).capitalize()
    return rng.choice(NAMES + EVERYDAY_NAMES)


def _things(rng: random.Random) -> str:
    if rng.random() < MADE_UP:
        return _made_up(rng) + "s"
    return rng.choice(OBJECTS + EVERYDAY_OBJECTS)


def _made_up(rng: random.Random) -> str:
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3)))


def _start(name: str, things: str) -> str:
    if not name:
        return f"There are {things}"
    return f"You start with {things}" if name == "I" else f"{name} starts with {things}"


def _told(name: str) -> str:
    """Return how the reply names the person."""
    return "you" if name == "I" else name


def _typed(rng: random.Random, question: str) -> str:
    return careless(rng, question) if rng.random() < 0.4 else question
