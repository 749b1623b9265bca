"""Control runs: a verifier's tests are run a second time as decoys (`agentrl.tasks.decoys`), in another fresh sandbox.

Guarantee: which of the two runs comes first is drawn by chance, and nothing in a sandbox tells them apart but the expected values. What passes the
first pair is run as another, so whoever cheats at random is seldom lucky. Only test files that the verifier's program certainly runs become decoys: those
whose names stand in it, or all if it calls pytest or unittest.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TypeVar

from agentrl.protocol import Verdict
from agentrl.sandbox.interface import ExecResult
from agentrl.tasks.decoys import cases_of, decoy_of
from agentrl.tasks.harbor import File, Files

PAIRS = 2
PAIR_SECONDS = 120.0
Real = TypeVar("Real")
Other = TypeVar("Other")
RUNNERS = re.compile(rb"\b(pytest|unittest)\b")
TEST_FILE = re.compile(r"test_.*\.py|.*_test\.py")


@dataclass(frozen=True)
class Ran:
    """How a verifier's program ended, and the content of its reward file; empty without one."""

    result: ExecResult
    reward: bytes = b""


@dataclass(frozen=True)
class Decoys:
    """A verifier's files with decoys in place of tests, and the keys of the tests that fail in them (`key_of`)."""

    tests: Files
    failing: frozenset[str]


@dataclass(frozen=True)
class Control:
    """What became of the decoys."""

    ran: Ran
    failing: frozenset[str]


def decoys_of(tests: Files, script: str, *, prints: bool = False) -> Decoys | None:
    """Return the decoys of a verifier's tests; None if there are none.

    Args:
        tests: its files, by path.
        script: the path of its program.
        prints: whether what the tests print decides, so that a program which prints results itself gets a decoy, too.
    """
    changed, failing = dict(tests), set[str]()
    for path in _certainly_run(tests, script):
        prints_itself = prints and _names(tests[script], path)
        if (text := _text(tests[path])) is not None and (found := decoy_of(text, script=prints_itself)):
            changed[path] = replace(tests[path], data=found.text.encode())
            failing |= {_key(path, name) for name in found.failing}
    return Decoys(MappingProxyType(changed), frozenset(failing)) if changed != dict(tests) else None


def keys_in(tests: Files) -> Mapping[str, bool]:
    """Return the keys of all tests of a verifier's files, and whether each may have several cases."""
    found: dict[str, bool] = {}
    for path, file in tests.items():
        if path.endswith(".py") and (text := _text(file)) is not None:
            found |= {_key(path, name): several for name, several in cases_of(text).items()}
    return found


def key_of(name: str) -> str:
    """Return the key of a test's id: ``test_a.py::test_b`` for ``../tests/test_a.py::test_b[1]``."""
    path, _, rest = name.partition("[")[0].partition("::")
    return _key(path, rest)


async def in_each_pair(judged: Callable[[], Awaitable[Verdict]]) -> Verdict:
    """Return the lowest verdict of several pairs of a run and its control, or the first that gives nothing.

    An agent that cheats in a run with probability p is rewarded with p (1 - p), to the power of `PAIRS`: at most 1 of 16. A
    pair of more than `PAIR_SECONDS` is the only one, so that right work never exceeds the time in which wrong work is judged.

    Args:
        judged: runs a pair, and returns its verdict.
    """
    verdicts: list[Verdict] = []
    until = time.monotonic() + PAIR_SECONDS
    while len(verdicts) < PAIRS and (not verdicts or time.monotonic() < until):
        verdict = await judged()
        if not verdict.score:
            return verdict
        verdicts.append(verdict)
    return min(verdicts, key=lambda verdict: verdict.score or 0.0)


async def in_any_order(
    real: Callable[[], Awaitable[Real]], control: Callable[[], Awaitable[Other]]
) -> tuple[Real, Other]:
    """Run both, one after the other, and return what they return."""
    if secrets.randbelow(2):
        first = await control()
        return await real(), first
    return await real(), await control()


def _certainly_run(tests: Files, script: str) -> list[str]:
    """Return the paths of the test files that a verifier's program runs, as far as its text says so."""
    paths = [path for path in tests if path.endswith(".py")]
    if named := [path for path in paths if _names(tests[script], path)]:
        return named
    if RUNNERS.search(tests[script].data) is None:
        return []
    return [path for path in paths if TEST_FILE.fullmatch(PurePosixPath(path).name)]


def _names(script: File, path: str) -> bool:
    """Return whether a program has the name of a file in its text."""
    return (
        re.search(rb"(?<![\w.-])" + re.escape(PurePosixPath(path).name.encode()) + rb"(?![\w.-])", script.data)
        is not None
    )


def _key(path: str, name: str) -> str:
    return f"{PurePosixPath(path).name}::{name}"


def _text(file: File) -> str | None:
    try:
        return file.data.decode()
    except UnicodeDecodeError:
        return None
