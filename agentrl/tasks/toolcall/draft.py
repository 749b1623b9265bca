"""What a family of tasks writes: a `Draft`.

A family is a function of a `random.Random`; all its choices come from it, so a seed always gives the same draft.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from pydantic import JsonValue

from agentrl.protocol import JsonObject

Store = Mapping[str, JsonValue]
Cell = str | int | float
Row = Mapping[str, Cell]
Tables = Mapping[str, Sequence[Row]]
GraderName = Literal["exact", "numeric", "math"]


@dataclass(frozen=True, slots=True)
class Expected:
    """The right answer.

    Attributes:
        text: as an agent would write it.
        grader: how an answer is compared with it; see `agentrl.tasks.toolcall.grading`.
        tolerance: of ``numeric``, the largest difference as a share of the right answer.
    """

    text: str
    grader: GraderName = "exact"
    tolerance: float = 0.0


@dataclass(frozen=True, slots=True)
class Draft:
    """A task.

    Attributes:
        question: what the agent is told.
        tools: built-in tools that it needs, by name.
        answer: that it has to give; None if only the final state counts.
        store: the key-value store in the beginning.
        tables: rows of each table in the beginning.
        final_store: the store in the end; None if it does not count.
        final_tables: the tables in the end, in any order of their rows; None if they do not count.
        calls: of an oracle, in order; its answer is `answer`.
    """

    question: str
    tools: Sequence[str]
    answer: Expected | None = None
    store: Store = field(default_factory=dict[str, JsonValue])
    tables: Tables = field(default_factory=dict[str, Sequence[Row]])
    final_store: Store | None = None
    final_tables: Tables | None = None
    calls: Sequence[JsonObject] = ()


Family = Callable[[Random], Draft]


def call(tool: str, **arguments: JsonValue) -> JsonObject:
    """Return the action that calls a tool."""
    return {"tool": tool, "arguments": {**arguments}}


def code(*lines: str) -> JsonObject:
    """Return the action that runs lines of Python."""
    return call("code_interpreter", code="\n".join(lines))


def number(value: float) -> Expected:
    """Return a number: a whole one is compared exactly, another one up to rounding."""
    return Expected(str(value), "numeric", 0.0 if isinstance(value, int) else 1e-6)


NAMES = tuple(
    "Ada Ben Cleo Dan Eva Finn Gina Hugo Ines Jan Kira Liam Mona Nils Olga Paul Rosa Sven Tara Uwe Vera Wim Yara Zoe".split()  # noqa: SIM905
)
THINGS = tuple(
    "apple bread candle drum engine flute glass hammer inkpot jacket kettle lamp mirror needle orange pencil quilt rope "  # noqa: SIM905
    "saddle table umbrella violin wheel yarn".split()
)
PLACES = tuple(
    "Aldon Brem Corvath Delmar Esten Farrow Gilden Harrow Istan Jorvik Kelm Lorne Mirrin Norwell Ostrava Pellam".split()  # noqa: SIM905
)
