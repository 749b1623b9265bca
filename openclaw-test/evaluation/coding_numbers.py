"""Problems about numbers and lists: each function draws one at a level from 1 to 3; see `coding_problem.problem`."""

from __future__ import annotations

from random import Random

from evaluation.coding_problem import Problem, numbers, problem


def filter_sum(rng: Random, level: int) -> Problem:
    """Add up the numbers that meet one, two or three conditions."""
    divisor, least = rng.randint(2, 5), rng.randint(-5, 10)
    tests = [f"n % {divisor} == 0", f"n > {least}", "place % 2 == 0"][:level]
    said = [f"are divisible by {divisor}", f"are greater than {least}", "stand at an even index (the first index is 0)"]
    return problem(
        rng,
        "filter_sum(numbers)",
        f"returns the sum of those numbers in a list that {' and '.join(said[:level])}",
        f"return sum(n for place, n in enumerate(numbers) if {' and '.join(tests)})",
        lambda rng: [numbers(rng)],
    )


def remap(rng: Random, level: int) -> Problem:
    """Map a list; filter it first; keep each result once."""
    factor, offset, divisor = rng.randint(2, 9), rng.randint(1, 9), rng.randint(2, 4)
    keep = f" if n % {divisor}" if level > 1 else ""
    said = f" after leaving out those divisible by {divisor}" if level > 1 else ""
    once = ", and keeps only the first of equal results" if level > 2 else ""
    body = f"found = [n * {factor} + {offset} for n in numbers{keep}]\n"
    body += "return list(dict.fromkeys(found))" if level > 2 else "return found"
    return problem(
        rng,
        "remap(numbers)",
        f"returns a list of the numbers{said}, in their order, each multiplied by {factor} and then increased by {offset}{once}",
        body,
        lambda rng: [numbers(rng, 0, 9)],
    )


def rotate(rng: Random, level: int) -> Problem:
    """Rotate a list by a constant; by an argument of either sign; each row of a table."""
    steps = rng.randint(1, 3)
    if level == 1:
        return problem(
            rng,
            "rotate(items)",
            f"returns a list rotated to the left by {steps}: each of the first {steps} items moves to the end. Any list "
            "length works, and an empty list stays empty",
            f"if not items:\n    return []\nk = {steps} % len(items)\nreturn items[k:] + items[:k]",
            lambda rng: [numbers(rng)],
        )
    if level == 2:
        return problem(
            rng,
            "rotate(items, steps)",
            "returns a list rotated to the left by a number of steps, which may be negative (to the right) or larger than the "
            "list. An empty list stays empty",
            "if not items:\n    return []\nk = steps % len(items)\nreturn items[k:] + items[:k]",
            lambda rng: [numbers(rng), rng.randint(-12, 12)],
        )
    return problem(
        rng,
        "rotate(rows)",
        f"returns a table (a list of lists of equal length) in which row number i (from 0) is rotated to the left by {steps} * i",
        f"return [row[{steps} * i % len(row):] + row[:{steps} * i % len(row)] if row else [] for i, row in enumerate(rows)]",
        lambda rng: [_table(rng)],
    )


def digits(rng: Random, level: int) -> Problem:
    """Add digits; weigh them by their place; repeat that until one digit is left."""
    factor = rng.randint(2, 7)
    if level == 1:
        body, wish = (
            f"return {factor} * sum(map(int, str(n)))",
            f"returns {factor} times the sum of the decimal digits of n",
        )
    elif level == 2:
        body = f"return sum(int(d) * ({factor} if place % 2 else 1) for place, d in enumerate(reversed(str(n))))"
        wish = (
            f"returns the sum of the decimal digits of n, in which every second digit, counted from the right, is taken {factor} "
            "times (the last digit once, the one before it that often, and so on)"
        )
    else:
        body = f"while n > {factor + 9}:\n    n = sum(map(int, str(n)))\nreturn n"
        wish = f"replaces n by the sum of its decimal digits for as long as n is greater than {factor + 9}, and returns what is left"
    return problem(
        rng, "digits(n)", f"takes a whole number n of 0 or more and {wish}", body, lambda rng: [rng.randint(0, 10**6)]
    )


def to_base(rng: Random, level: int) -> Problem:
    """Write a number in another base; negative ones too; read it back."""
    base = rng.randint(3, 7)
    lines = f"if n == 0:\n    return '0'\nsign, n, text = '-' * (n < 0), abs(n), ''\nwhile n:\n    text, n = str(n % {base}) + text, n // {base}\nreturn sign + text"
    if level == 3:
        return problem(
            rng,
            "from_base(text)",
            f"returns the whole number that a text writes in base {base}; the text may begin with a minus sign, and contains "
            "underscores that mean nothing",
            f"return int(text.replace('_', ''), {base})",
            lambda rng: [_in_base(rng, base)],
        )
    least = 0 if level == 1 else -3000
    also = "" if level == 1 else ", with a minus sign before it for a negative one"
    return problem(
        rng,
        "to_base(n)",
        f"returns a whole number written in base {base} as a string{also}",
        lines,
        lambda rng: [rng.randint(least, 3000)],
    )


def recurrence(rng: Random, level: int) -> Problem:
    """Follow a recurrence of one, two or three terms, modulo a number."""
    modulus = rng.randint(50, 150)
    starts = [rng.randint(0, 9) for _ in range(level)]
    factors = [rng.randint(1, 5) for _ in range(level)]
    add = rng.randint(1, 5)
    terms = " + ".join(f"{factor} * f(n-{back + 1})" for back, factor in enumerate(factors))
    first = ", ".join(f"f({place}) = {value}" for place, value in enumerate(starts))
    update = " + ".join(f"{factor} * f[-{back + 1}]" for back, factor in enumerate(factors))
    return problem(
        rng,
        "f(n)",
        f"returns f(n) of this sequence, for n of 0 or more: {first}, and every later f(n) = ({terms} + {add}) modulo {modulus}",
        f"f = {starts}\nwhile len(f) <= n:\n    f.append(({update} + {add}) % {modulus})\nreturn f[n]",
        lambda rng: [rng.randint(0, 60)],
    )


def pairs(rng: Random, level: int) -> Problem:
    """Count pairs with a sum; with a difference and an order; list the pairs."""
    target = rng.randint(5, 15)
    loops = "for i in range(len(numbers)) for j in range(i + 1, len(numbers))"
    tests = {
        1: f"numbers[i] + numbers[j] == {target}",
        2: f"numbers[j] - numbers[i] == {target - 3}",
        3: f"numbers[i] + numbers[j] == {target}",
    }
    what = {
        1: f"returns the number of pairs of places i < j in a list with numbers[i] + numbers[j] == {target}",
        2: f"returns the number of pairs of places i < j in a list with numbers[j] - numbers[i] == {target - 3}",
        3: f"returns all lists [i, j] of places i < j in a list with numbers[i] + numbers[j] == {target}, in ascending order",
    }
    found = f"[[i, j] {loops} if {tests[level]}]"
    return problem(
        rng,
        "pairs(numbers)",
        what[level],
        f"return {found}" if level == 3 else f"return len({found})",
        lambda rng: [numbers(rng, 0, 15, 9)],
    )


def grid(rng: Random, level: int) -> Problem:
    """Mirror a table; turn it; add up its border."""
    factor = rng.randint(2, 5)
    if level == 1:
        wish, body = (
            f"returns the table with each row reversed and each number multiplied by {factor}",
            f"return [[{factor} * n for n in reversed(row)] for row in rows]",
        )
    elif level == 2:
        wish, body = (
            f"returns the table turned clockwise by 90 degrees, with {factor} added to each number. A table without numbers "
            "gives an empty list",
            f"return [[n + {factor} for n in column] for column in zip(*reversed(rows))]",
        )
    else:
        wish, body = (
            f"returns {factor} times the sum of the numbers in the first row, the last row, the first column and the last "
            "column, each number counted once",
            f"high = len(rows)\nreturn {factor} * sum(n for i, row in enumerate(rows) for j, n in enumerate(row) "
            "if i in (0, high - 1) or j in (0, len(row) - 1))",
        )
    return problem(
        rng,
        "grid(rows)",
        f"takes a table (a list of lists of equal length) and {wish}",
        body,
        lambda rng: [_table(rng)],
    )


def _table(rng: Random) -> list[list[int]]:
    width = rng.randint(1, 4)
    return [[rng.randint(0, 20) for _ in range(width)] for _ in range(rng.randint(1, 4))]


def _in_base(rng: Random, base: int) -> str:
    text = "".join(str(rng.randrange(base)) for _ in range(rng.randint(1, 7)))
    place = rng.randint(0, len(text) - 1)
    return rng.choice(("", "-")) + (text if place == 0 else f"{text[:place]}_{text[place:]}")


NUMBERS = (filter_sum, remap, rotate, digits, to_base, recurrence, pairs, grid)
