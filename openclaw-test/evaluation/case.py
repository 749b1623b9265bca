"""A problem, its grade, and what a suite of problems implements.

Guarantee: a case is made from suite, seed and number alone, so every model gets the same ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from evaluation.talk import Talk

PASSED = "passed"
LEVELS = 3


class EvalError(RuntimeError):
    """The evaluation cannot go on; the message says what to type."""


class SuiteError(RuntimeError):
    """One suite cannot run here; the others can."""


@dataclass(frozen=True, slots=True)
class Case:
    """One problem.

    Attributes:
        suite: name of its suite.
        family: kind of problem within the suite.
        level: 1 (easiest) to `LEVELS`.
        seed: of the evaluation.
        number: within suite and seed.
        problem: what the suite needs to play it.
    """

    suite: str
    family: str
    level: int
    seed: int
    number: int
    problem: Any

    @property
    def id(self) -> str:
        """Name of the problem, the same for every model."""
        return f"{self.suite}/{self.family}/{self.level}/{self.seed}/{self.number}"


@dataclass(frozen=True, slots=True)
class Grade:
    """The verdict on a case.

    Attributes:
        reason: `PASSED`, or a short name of what went wrong.
        detail: the same for a person, with values.
        malformed_calls: tool calls that nobody could carry out.
    """

    reason: str = PASSED
    detail: str = ""
    malformed_calls: int = 0

    @property
    def passed(self) -> bool:
        """Whether the case is solved."""
        return self.reason == PASSED


class Suite(Protocol):
    """A set of problems. `open` comes before the first `play`, `close` after the last one."""

    name: str

    def cases(self, seed: int, count: int) -> Sequence[Case]:
        """Return the first ``count`` cases of a seed."""
        ...

    async def open(self) -> None:
        """Prepare.

        Raises:
            SuiteError: the suite cannot run on this machine.
        """
        ...

    async def play(self, case: Case, talk: Talk) -> Grade:
        """Hold the conversation of a case and grade it."""
        ...

    async def close(self) -> None:
        """Release what `open` and `play` took."""
        ...


Family = Callable[[Random, int], Any]
"""Draws a problem of a level."""


def draw_cases(suite: str, families: dict[str, Family], seed: int, count: int) -> list[Case]:
    """Return ``count`` cases that go through families and levels in turn.

    Another seed goes on where this one ends, so that several small seeds cover all families.
    """
    names = list(families)
    cases: list[Case] = []
    for number in range(count):
        place = seed * count + number
        family = names[place % len(names)]
        level = 1 + (place // len(names) + place % len(names)) % LEVELS
        problem = families[family](Random(f"{suite}/{family}/{level}/{seed}/{number}"), level)
        cases.append(Case(suite, family, level, seed, number, problem))
    return cases


@dataclass(frozen=True)
class Plain:
    """A suite that needs nothing but the model: families of problems, and a function that plays one."""

    name: str
    families: dict[str, Family]
    player: Callable[[Case, Talk], Awaitable[Grade]]

    def cases(self, seed: int, count: int) -> list[Case]:
        """See `Suite.cases`."""
        return draw_cases(self.name, self.families, seed, count)

    async def open(self) -> None:
        """See `Suite.open`."""

    async def play(self, case: Case, talk: Talk) -> Grade:
        """See `Suite.play`."""
        return await self.player(case, talk)

    async def close(self) -> None:
        """See `Suite.close`."""
