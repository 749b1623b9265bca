"""Tasks about numbers: chains, word problems, number theory."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

from agentrl.protocol import JsonObject
from agentrl.tasks.toolcall.draft import NAMES, THINGS, Draft, Expected, call, code, number


def chain(rng: Random) -> Draft:
    """Apply several operations, one after another."""
    value = rng.randrange(10, 500)
    steps, calls = [f"Start with {value}."], []
    for _ in range(rng.randrange(2, 5)):
        sign, verb = rng.choice([("+", "Add"), ("-", "Subtract"), ("*", "Multiply by")])
        other = rng.randrange(2, 10) if sign == "*" else rng.randrange(10, 1000)
        calls.append(call("calculator", expression=f"{value} {sign} {other}"))
        value = {"+": value + other, "-": value - other, "*": value * other}[sign]
        steps.append(f"{verb} {other}.")
    return Draft(f"{' '.join(steps)} What is the result?", ["calculator"], number(value), calls=calls)


def shopping(rng: Random) -> Draft:
    """Find the change of a purchase."""
    name, (first, second) = rng.choice(NAMES), rng.sample(THINGS, 2)
    counts, cents = [rng.randrange(2, 9) for _ in "ab"], [rng.randrange(105, 2000) for _ in "ab"]
    total = sum(count * price for count, price in zip(counts, cents, strict=True))
    paid = (total // 10_000 + 1) * 10_000
    prices = [f"{price / 100:.2f}" for price in cents]
    expression = f"{paid // 100} - ({counts[0]} * {prices[0]} + {counts[1]} * {prices[1]})"
    return Draft(
        f"{name} buys {counts[0]} of the item {first} at {prices[0]} each and {counts[1]} of the item {second} at "
        f"{prices[1]} each, and pays with {paid // 100}. How much change does {name} get?",
        ["calculator"],
        number((paid - total) / 100),
        calls=[call("calculator", expression=expression)],
    )


def journey(rng: Random) -> Draft:
    """Find the average speed of a journey."""
    hours, speeds = [rng.randrange(1, 7) for _ in "ab"], rng.sample(range(20, 120), 2)
    answer, solution = _mean(hours, speeds)
    return Draft(
        f"A train goes {hours[0]} hours at {speeds[0]} km/h, then {hours[1]} hours at {speeds[1]} km/h. What is its "
        "average speed in km/h? Give at least three decimals.",
        ["calculator"],
        answer,
        calls=[solution],
    )


def mixture(rng: Random) -> Draft:
    """Find the concentration of a mixture; held out."""
    litres, percents = [rng.randrange(1, 20) for _ in "ab"], rng.sample(range(5, 95), 2)
    answer, solution = _mean(litres, percents)
    return Draft(
        f"{litres[0]} litres of water with {percents[0]} % salt are mixed with {litres[1]} litres with {percents[1]} % "
        "salt. How many percent salt has the mixture? Give at least three decimals.",
        ["calculator"],
        answer,
        calls=[solution],
    )


def count_primes(rng: Random) -> Draft:
    """Count the primes between two numbers."""
    low = rng.randrange(100, 5000)
    high = low + rng.randrange(100, 2000)
    answer = sum(all(n % d for d in range(2, math.isqrt(n) + 1)) for n in range(low, high + 1))
    return Draft(
        f"How many primes are there from {low} to {high}?",
        ["code_interpreter"],
        number(answer),
        calls=[
            code(
                "from math import isqrt",
                f"print(sum(all(n % d for d in range(2, isqrt(n) + 1)) for n in range({low}, {high} + 1)))",
            )
        ],
    )


def power_mod(rng: Random) -> Draft:
    """Find a remainder of a large power."""
    base, power, modulus = rng.randrange(2, 1000), rng.randrange(100, 100_000), rng.randrange(1000, 10_000)
    return Draft(
        f"What is the remainder of {base}^{power} divided by {modulus}?",
        ["code_interpreter"],
        number(pow(base, power, modulus)),
        calls=[code(f"print(pow({base}, {power}, {modulus}))")],
    )


def digit_sum(rng: Random) -> Draft:
    """Add the digits of a large power."""
    base, power = rng.randrange(2, 30), rng.randrange(20, 200)
    return Draft(
        f"What is the sum of the digits of {base}^{power}?",
        ["code_interpreter"],
        number(sum(map(int, str(base**power)))),
        calls=[code(f"print(sum(map(int, str({base} ** {power}))))")],
    )


def common_divisor(rng: Random) -> Draft:
    """Find the greatest common divisor of three numbers."""
    factor = rng.randrange(2, 500)
    numbers = [factor * rng.randrange(100, 10_000) for _ in range(3)]
    return Draft(
        f"What is the greatest common divisor of {numbers[0]}, {numbers[1]} and {numbers[2]}?",
        ["code_interpreter"],
        number(math.gcd(*numbers)),
        calls=[code("import math", f"print(math.gcd({numbers[0]}, {numbers[1]}, {numbers[2]}))")],
    )


def _mean(amounts: list[int], values: list[int]) -> tuple[Expected, JsonObject]:
    """Return the mean of two values of a size between 1 and 120 by their amounts, and the call that finds it.

    An answer with three decimals meets it.
    """
    total = sum(amounts)
    mean = Fraction(amounts[0] * values[0] + amounts[1] * values[1], total)
    expression = f"({amounts[0]} * {values[0]} + {amounts[1]} * {values[1]}) / {total}"
    return Expected(str(float(mean)), "numeric", 5e-4), call("calculator", expression=expression)
