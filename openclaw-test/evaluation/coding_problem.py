"""A programming problem: what is asked, its solution, and inputs that the model never sees.

Guarantees: the expected results come from the solution itself. At least `MIN_RESULTS` of the hidden ones differ, so that no
constant passes, and no hidden input is an example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

EXAMPLES = 2
HIDDEN = 10
MIN_RESULTS = 3
MAX_DRAWS = 200
Arguments = list[Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem.

    Attributes:
        name: of the function.
        signature: the function with its parameters, as the model reads it.
        wish: what it returns.
        solution: Python source that defines it.
        examples: arguments and result that the model reads.
        hidden: arguments and result that grade it.
    """

    name: str
    signature: str
    wish: str
    solution: str
    examples: Sequence[tuple[Arguments, Any]]
    hidden: Sequence[tuple[Arguments, Any]]

    @property
    def text(self) -> str:
        """What the model is asked."""
        shown = "\n".join(
            f"{self.name}({', '.join(map(repr, arguments))}) == {result!r}" for arguments, result in self.examples
        )
        return (
            f"Write a Python function `{self.signature}` that {self.wish}.\n\nExamples:\n{shown}\n\n"
            "Answer with one code block that defines the function, and nothing else."
        )


def problem(rng: Random, signature: str, wish: str, body: str, draw: Callable[[Random], Arguments]) -> Problem:
    """Return a problem with drawn inputs.

    Args:
        rng: decides the inputs.
        signature: such as ``total(numbers)``.
        wish: what the function returns, after "that".
        body: lines of the solution, without indentation.
        draw: makes the arguments of one call.

    Raises:
        ValueError: the inputs hardly differ in their results; the family is badly made.
    """
    name = signature.partition("(")[0]
    solution = f"def {signature}:\n" + "\n".join(f"    {line}" for line in body.strip("\n").splitlines()) + "\n"
    space: dict[str, Any] = {}
    exec(solution, space)  # our own text, from the module `coding`
    results: dict[str, tuple[Arguments, Any]] = {}
    for _ in range(MAX_DRAWS):
        arguments = draw(rng)
        results.setdefault(repr(arguments), (arguments, space[name](*_copy(arguments))))
        pairs = list(results.values())
        hidden = pairs[EXAMPLES:]
        if len(hidden) >= HIDDEN and len({repr(result) for _, result in hidden}) >= MIN_RESULTS:
            return Problem(name, signature, wish, solution, pairs[:EXAMPLES], hidden[-HIDDEN:])
    raise ValueError(f"{signature}: {MAX_DRAWS} inputs give fewer than {MIN_RESULTS} results or {HIDDEN} tests")


def _copy(arguments: Arguments) -> Arguments:
    """Return a copy, because a solution may change its arguments."""
    return [list(argument) if isinstance(argument, list) else argument for argument in arguments]


def numbers(rng: Random, low: int = -20, high: int = 40, most: int = 8) -> list[int]:
    """Return a list of whole numbers, sometimes an empty one."""
    return [rng.randint(low, high) for _ in range(rng.randint(0, most))]
