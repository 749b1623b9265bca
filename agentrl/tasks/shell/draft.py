"""What a family of tasks writes: a `Draft`, and the checks that its verifier makes.

A family is a function of a `random.Random`; all its choices come from it, so a seed always gives the same draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from pydantic import JsonValue

Check = Mapping[str, JsonValue]
Content = str | bytes
ANSWER = "answer.txt"


@dataclass(frozen=True, slots=True)
class Draft:
    """A task before it has its Harbor layout.

    Attributes:
        instruction: what the agent is told; paths are relative to its working directory.
        files: what it finds there, by path.
        checks: what has to hold in the end; see `agentrl.tasks.shell.check`.
        solution: lines of a shell script that solves it.
        modes: of files that do not have 644.
        trial: lines of a shell script that runs the agent's program on `trial_files`, where no answer can be seen.
        trial_files: inputs that the agent never sees, by path in the working directory.
    """

    instruction: str
    files: Mapping[str, Content]
    checks: Sequence[Check]
    solution: str
    modes: Mapping[str, int] = field(default_factory=dict[str, int])
    trial: str = ""
    trial_files: Mapping[str, Content] = field(default_factory=dict[str, Content])


Family = Callable[[Random], Draft]


def lines(path: str, expected: Iterable[object]) -> Check:
    """A file with these lines."""
    return {"kind": "text", "path": path, "lines": [str(line) for line in expected]}


def exact(path: str, expected: str) -> Check:
    """A file with exactly this text."""
    return {"kind": "exact", "path": path, "text": expected}


def value(path: str, expected: JsonValue) -> Check:
    """A JSON file with this value."""
    return {"kind": "value", "path": path, "value": expected}


def table(path: str, rows: Iterable[Iterable[object]]) -> Check:
    """A CSV file with these rows, its header among them."""
    return {"kind": "table", "path": path, "rows": [[str(cell) for cell in row] for row in rows]}


def mode(path: str, bits: int) -> Check:
    """A file or folder with these permission bits."""
    return {"kind": "mode", "path": path, "mode": f"{bits:o}"}


def absent(path: str) -> Check:
    """No file or folder of this name."""
    return {"kind": "absent", "path": path}


def names(path: str, expected: Iterable[str]) -> Check:
    """A folder with exactly these names in it."""
    return {"kind": "names", "path": path, "names": [*sorted(expected)]}


def link(path: str, target: str) -> Check:
    """A symbolic link that leads to ``target``."""
    return {"kind": "link", "path": path, "target": target}


def archive(path: str, files: Mapping[str, str]) -> Check:
    """A tar archive, compressed or not, with exactly these files."""
    return {"kind": "archive", "path": path, "files": {**files}}


WORDS = tuple(
    """
    amber anchor apple arrow autumn beacon birch bridge bronze canyon cedar cinder cloud cobalt copper coral crystal
    delta desert ember falcon fern forest garnet glacier granite harbor hazel heron indigo island ivory jasper juniper
    lagoon lantern maple marble meadow mesa mirror nectar north oasis ocean olive onyx orchid pebble pepper pine
    prairie quartz raven reef ridge river saffron sierra silver spruce summit timber tundra velvet violet willow winter
    """.split()  # noqa: SIM905
)


def word(rng: Random) -> str:
    """Return a short phrase that hardly any other seed has."""
    return f"{rng.choice(WORDS)}-{rng.choice(WORDS)}-{rng.randrange(10_000):04}"


def distinct(rng: Random, count: int) -> list[str]:
    """Return ``count`` different words."""
    return rng.sample(WORDS, count)
