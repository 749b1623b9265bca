"""Pairs of a run and its control: who cheats at random is seldom lucky, and who is right always is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from agentrl.exceptions import InvalidError
from agentrl.sandbox.interface import ExecResult, Mount
from agentrl.tasks.harbor import File, HarborTask, Machine, Settings, Stage, VerifierStage
from agentrl.tasks.shell import verify as controls
from agentrl.tasks.shell.verify import PAIRS, run_verifier

TEST = b"def test_a():\n    assert double(21) == 42\n"
TASK = HarborTask(
    name="a",
    instruction="x",
    environment=MappingProxyType({}),
    tests=MappingProxyType({"test.sh": File(b"pytest", 0o755), "test_a.py": File(TEST)}),
    solution=MappingProxyType({}),
    settings=Settings(agent=Stage(timeout_sec=1), verifier=VerifierStage(timeout_sec=1), environment=Machine()),
)


class Machines:
    """Sandboxes that tell what a verifier does with decoys and without."""

    def __init__(self, real: Sequence[tuple[int, str]], control: Sequence[tuple[int, str]]) -> None:
        self.ends = {True: iter(real), False: iter(control)}
        self.runs = 0

    async def start(self, mounts: Sequence[Mount]) -> Any:
        return Machine_(self, (mounts[0].host / "test_a.py").read_bytes() == TEST)


class Machine_:
    def __init__(self, machines: Machines, real: bool) -> None:
        self.machines, self.real, self.reward = machines, real, ""

    async def execute(self, argv: Sequence[str], **_: Any) -> ExecResult:
        self.machines.runs += 1
        status, self.reward = next(self.machines.ends[self.real])
        return ExecResult(status, b"", 0, False, 0.1)

    async def read_file(self, path: str, **_: Any) -> bytes:
        if not self.reward:
            raise InvalidError("none", code="refused_in_sandbox")
        return self.reward.encode()

    async def write_file(self, path: str, data: bytes, **_: Any) -> None: ...
    async def end_commands(self) -> None: ...
    async def stop(self) -> None: ...


async def judged(
    real: Sequence[tuple[int, str]], control: Sequence[tuple[int, str]], untouched: str = "0"
) -> tuple[str, float | None, int]:
    machines = Machines(real, control)
    fine = Machines([(0, untouched)] * PAIRS, [])
    verdict = await run_verifier(TASK, machines.start, fine.start)
    return verdict.status, verdict.score, machines.runs


async def test_of_all_ways_to_cheat_at_random_one_in_sixteen_is_rewarded() -> None:
    scores = []
    for coins in itertools.product("01", repeat=2 * PAIRS):
        ends = [(0, coin) for coin in coins]
        scores.append((await judged(ends[:PAIRS], ends[PAIRS:]))[1])
    assert sum(score or 0.0 for score in scores) == 1
    assert len(scores) == 16


async def test_a_right_program_is_run_in_every_pair_and_has_the_lowest_score() -> None:
    assert await judged([(0, "1")] * PAIRS, [(0, "0")] * PAIRS) == ("ok", 1.0, 2 * PAIRS)
    assert await judged([(0, "1"), (0, "0.5")], [(0, "0")] * PAIRS) == ("ok", 0.5, 2 * PAIRS)


async def test_a_wrong_program_is_run_as_one_pair() -> None:
    assert await judged([(0, "0")], [(0, "0")]) == ("task_failed", 0.0, 2)


async def test_a_verifier_that_says_no_by_writing_nothing_rewards_a_right_program() -> None:
    assert await judged([(0, "1")] * PAIRS, [(0, "")] * PAIRS, untouched="") == ("ok", 1.0, 2 * PAIRS)


async def test_a_second_pair_that_takes_long_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 60.0, 200.0])
    monkeypatch.setattr(controls, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert await judged([(0, "0.5"), (0, "1")], [(0, "0")] * PAIRS) == ("ok", 0.5, 2 * PAIRS)


async def test_tests_that_take_long_are_run_as_one_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "PAIR_SECONDS", -1.0)
    assert await judged([(0, "1")], [(0, "0")]) == ("ok", 1.0, 2)


@pytest.mark.parametrize(
    ("control", "score"),
    [
        ((0, ""), 0.0),  # somebody took the reward away that the verifier wrote
        ((0, "x"), 0.0),
        ((1, ""), 1.0),  # it stopped at the failure, before it wrote one
        ((0, "0.5"), 1.0),
        ((0, "1"), 0.0),
    ],
)
async def test_what_a_control_has_to_look_like(control: tuple[int, str], score: float) -> None:
    assert (await judged([(0, "1")] * PAIRS, [control] * PAIRS))[1] == score
