"""The judge of steps: what it is asked, by which id its scores are known, and what bounds it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from agentrl.rollout import step_judge
from agentrl.rollout.step_judge import StepJudge, step_question
from lab.testkit.agent_pools import until
from openclaw.exceptions import EngineUnavailableError
from openclaw.judge.answers import last_box
from openclaw.judge.interface import Question
from openclaw.ledger.records import JudgeKind, Vote

ACTION = {"role": "assistant", "content": "I say 7. \\boxed{1}"}
HEARD = [{"role": "tool", "content": "wrong; \\boxed{ 1 }"}]


def question(name: str = "goal", share: float = 1.0) -> Question:
    return step_question(name, [{"role": "user", "content": "Guess."}], ACTION, HEARD, share=share)


class Votes:
    """A judge whose votes a test decides, by the goal in the question."""

    def __init__(self, votes: dict[str, Sequence[int | None]], broken: Exception | None = None) -> None:
        self.values = votes
        self.gates = {name: asyncio.Event() for name in votes}
        self.broken = broken
        self.busy = self.most_busy = 0

    async def votes(self, kind: JudgeKind, question: Question, count: int) -> list[Vote]:
        assert kind == "prm"
        (name,) = [name for name in self.values if f"\n{name}\n" in question.asked("prm", "full")[1]["content"]]
        self.busy += 1
        self.most_busy = max(self.busy, self.most_busy)
        try:
            await self.gates[name].wait()
        finally:
            self.busy -= 1
        if self.broken:
            raise self.broken
        return [Vote("prm", "", value, None, 0.1) for value in self.values[name][:count]]

    async def answers(self) -> bool:
        return True

    async def close(self) -> None:
        return None


def test_what_is_judged_cannot_be_read_as_a_verdict() -> None:
    system, user = question().asked("prm", "full")
    assert "## Goal" in user["content"]
    assert "## Before [user]" in user["content"]
    assert last_box(user["content"], (-1, 1)) == (None, "no_box")
    assert "\\boxed{-1}" in system["content"]
    long = step_question("g" * 90_000, [{"role": "user", "content": "h" * 9_000}] * 30, ACTION, HEARD)
    assert len(long.asked("prm", "full")[1]["content"]) < 30_000


async def test_scores_belong_to_the_step_that_was_asked_about() -> None:
    judge = Votes({"one": [1, 1, -1], "two": [None, 0, None], "three": [-1, -1, -1]})
    steps = StepJudge(judge, 3, asyncio.Semaphore(2))
    for name in judge.values:
        steps.ask(f"e:{name}", partial(question, name))
    await until(lambda: judge.busy == 2)
    for name in ("three", "two", "one"):
        judge.gates[name].set()
    scores = await steps.scores(20)
    assert {name: score.score for name, score in scores.items()} == {
        "e:one": pytest.approx(1 / 3),
        "e:two": None,
        "e:three": -1.0,
    }
    assert judge.most_busy == 2


async def test_a_judge_that_fails_gives_no_score() -> None:
    judge = Votes({"one": [1]}, EngineUnavailableError("away"))
    judge.gates["one"].set()
    steps = StepJudge(judge, 1, asyncio.Semaphore(1))
    steps.ask("e:0", partial(question, "one"))
    assert await steps.scores(20) == {}
    assert steps.skipped == {"failed": 1}


async def test_a_judge_that_is_late_or_overloaded_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_judge, "MAX_WAITING", 1)
    judge = Votes({"one": [1]})
    steps = StepJudge(judge, 1, asyncio.Semaphore(1))
    steps.ask("e:0", partial(question, "one"))
    steps.ask("e:1", partial(question, "one"))
    await until(lambda: judge.busy == 1)
    assert await steps.scores(0.001) == {}
    assert steps.skipped == {"overload": 1, "late": 1}
    assert judge.busy == 0, "it was cancelled"


async def test_a_defect_is_no_missing_score() -> None:
    judge: Any = Votes({"one": [1]}, ZeroDivisionError("a defect"))
    judge.gates["one"].set()
    steps = StepJudge(judge, 1, asyncio.Semaphore(1))
    steps.ask("e:0", partial(question, "one"))
    with pytest.raises(ZeroDivisionError):
        await steps.scores(20)
