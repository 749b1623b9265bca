"""A session's hint is asked once, when the session has ended or has gone on for long, and no failure is a hint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from lab.testkit.ledger_records import USER_NEXT, make_turn
from lab.testkit.tiny_random import build_tokenizer
from lab.testkit.waiting import eventually
from openclaw.exceptions import EngineUnavailableError
from openclaw.judge.client import JudgeClient, JudgeSampling
from openclaw.judge.hygiene import Limits
from openclaw.judge.teacher import TeacherScorer
from openclaw.judge.voting import JudgeMetrics
from openclaw.judge.worker import NO_QUORUM, JudgeWorker, WorkerSettings
from openclaw.ledger.records import Feedback, Turn, Verdict
from openclaw.ledger.store import Ledger
from openclaw.method import JudgePlan, SampleDecision, SessionPlan
from openclaw.training.samples import make_sample
from tests.helpers.fake_engine import FakeEngine

LESSON = "Write plain prose for this user."
GIVES = rf"[HINT_START] {LESSON} [HINT_END] \boxed{{1}}"
GIVES_NONE = r"\boxed{-1}"
SETTINGS = WorkerSettings(concurrency=3, timeout=60.0, poll_seconds=0.02, first_pause=0.0)


def one_by_one(turns: Sequence[Turn]) -> list[list[dict[str, Any]]]:
    """Ask about each turn, the last one first."""
    texts = [f"{turn.id}: {[message['content'] for message in turn.next_state or []]}" for turn in reversed(turns)]
    return [[{"role": "user", "content": text}] for text in texts]


class Chapters:
    """A method with one hint per session."""

    name = "chapters"

    def __init__(self, questions: Any = one_by_one, longest_wait: float = 3600.0, votes: int = 1) -> None:
        self._plan = JudgePlan(hint_votes=votes, needs_teacher=True, session=SessionPlan(questions, longest_wait))

    def judges(self) -> JudgePlan:
        return self._plan

    def samples(self, turn: Turn, verdict: Verdict) -> SampleDecision:
        if verdict.teacher_log_probs is None:
            return SampleDecision(reason="no_lesson")
        return SampleDecision([make_sample(turn, 0.0, score=None, teacher_log_probs=verdict.teacher_log_probs)])

    def session_samples(self, judged: Any) -> list[Any]:
        return []


@dataclass
class Bench:
    """A worker whose judge answers with ``answer``; ``asked`` has the text of each question."""

    ledger: Ledger
    answer: Callable[[str], str] = lambda _: GIVES
    method: Chapters = field(default_factory=Chapters)
    settings: WorkerSettings = SETTINGS
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    asked: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    tokenizer: Any = field(default_factory=build_tokenizer)

    def said(self, payload: dict[str, Any]) -> str:
        text = self.tokenizer.decode(payload["input_ids"])
        self.asked.append(text.partition("<|im_start|>user\n")[2].partition("<|im_end|>")[0])
        return self.answer(self.asked[-1])

    def render(self, messages: Sequence[Any], *_: Any) -> list[int]:
        if "hint / instruction" not in str(messages):
            return make_turn().prompt_ids
        self.read.append(messages[-1]["content"])
        return [9, 9, 9, 9, 9]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[JudgeWorker]:
        engine = FakeEngine(self.said, score=lambda ids: [-1.0] * len(ids))
        teacher = TeacherScorer(policy=engine, teacher=engine, render=self.render, concurrency=1)
        judge = JudgeClient(engine, self.tokenizer, "full", JudgeSampling())
        limits = Limits(temperature=0.6, min_response_tokens=2, max_tokens=100)
        worker = JudgeWorker(
            *(self.ledger, self.method, judge, teacher, limits, JudgeMetrics(self.registry)),
            engine.answers,
            self.settings,
        )
        stop = asyncio.Event()
        task = asyncio.create_task(worker.run(stop))
        try:
            yield worker
        finally:
            stop.set()
            await asyncio.wait_for(task, 10.0)

    def pend(self, *turn_ids: str, session_id: str = "session", at: float = 102.0) -> None:
        for turn_id in turn_ids:
            self.ledger.turns.record(make_turn(turn_id, session_id=session_id))
            self.ledger.turns.record_next_state(turn_id, USER_NEXT, at)

    async def judged(self, count: int) -> None:
        await eventually(lambda: self.ledger.views.counts()["turns"].get("judged", 0), count)

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


@pytest.mark.parametrize("concurrency", [1, 2, 8])
async def test_a_session_is_asked_about_once_and_each_turn_gets_the_hint(ledger: Ledger, concurrency: int) -> None:
    bench = Bench(ledger, settings=replace(SETTINGS, concurrency=concurrency))
    bench.pend("a", "b", "c")
    ledger.sessions.end("session", 200.0)
    async with bench.running():
        await bench.judged(3)
    assert bench.asked == ["c: ['No bold please, write it again.']"]
    assert [record.verdict.hint for record in ledger.judging.judged("session")] == [LESSON] * 3
    assert [LESSON in text for text in bench.read] == [True] * 3
    assert len(ledger.samples.claim(0, 5)) == 3
    assert bench.count("openclaw_judge_votes_total", judge="hint", value="1") == 1


async def test_turns_wait_for_the_end_of_their_session(ledger: Ledger) -> None:
    bench = Bench(ledger)
    now = ledger.database.clock()
    bench.pend("a", at=now)
    bench.pend("other", session_id="ended", at=now)
    ledger.sessions.end("ended", now)
    async with bench.running() as worker:
        await bench.judged(1)
        assert ledger.turns.get("a").state == "pending"
        ledger.sessions.end("session", now)
        worker.notify()
        await bench.judged(2)


async def test_a_session_that_goes_on_is_judged_after_the_longest_wait(ledger: Ledger) -> None:
    bench = Bench(ledger, method=Chapters(longest_wait=600.0))
    now = ledger.database.clock()
    bench.pend("old", "older", at=now - 601.0)
    bench.pend("new", at=now)
    async with bench.running():
        await bench.judged(2)
        assert ledger.turns.get("new").state == "pending"
    assert len(bench.asked) == 1
    assert bench.asked[0].startswith("new: "), "the judge reads the session so far"


async def test_questions_are_asked_until_one_gives_a_hint(ledger: Ledger) -> None:
    bench = Bench(ledger, lambda text: GIVES if text.startswith("b") else GIVES_NONE)
    bench.pend("a", "b", "c")
    ledger.sessions.end("session", 200.0)
    async with bench.running():
        await bench.judged(3)
    assert [text[0] for text in bench.asked] == ["c", "b"]
    assert ledger.judging.judged("session")[0].verdict.hint == LESSON


async def test_a_session_without_a_hint_gives_none(ledger: Ledger) -> None:
    bench = Bench(ledger, lambda _: GIVES_NONE)
    bench.pend("a", "b")
    ledger.sessions.end("session", 200.0)
    async with bench.running():
        await bench.judged(2)
    assert ledger.views.counts()["turn_reasons"] == {"no_lesson": 2}
    assert bench.read == []


async def test_garbage_is_no_lesson(ledger: Ledger) -> None:
    bench = Bench(ledger, lambda _: "I would say so.")
    bench.pend("a")
    ledger.sessions.end("session", 200.0)
    async with bench.running():
        await bench.judged(1)
    assert ledger.views.counts()["turn_reasons"] == {NO_QUORUM: 1}


async def test_a_failed_question_is_asked_again_for_every_turn(ledger: Ledger) -> None:
    failures = iter([True, True])

    def answer(_: str) -> str:
        if next(failures, False):
            raise EngineUnavailableError("connection refused")
        return GIVES

    bench = Bench(ledger, answer)
    bench.pend("a", "b", "c")
    ledger.sessions.end("session", 200.0)
    async with bench.running():
        await bench.judged(3)
    assert [record.verdict.hint for record in ledger.judging.judged("session")] == [LESSON] * 3


async def test_feedback_after_the_verdict_is_read_by_a_new_question(ledger: Ledger) -> None:
    bench = Bench(ledger)
    bench.pend("a", "b")
    ledger.sessions.end("session", 200.0)
    async with bench.running() as worker:
        await bench.judged(2)
        words = [{"role": "user", "content": "Too long."}]
        ledger.feedback.record(Feedback(turn_id="b", created_at=300.0, text="Too long."), words)
        worker.notify()
        await bench.judged(2)
    assert "Too long." not in bench.asked[0]
    assert "Too long." in bench.asked[1]


async def test_a_session_that_resumes_is_judged_again_at_its_next_end(ledger: Ledger) -> None:
    bench = Bench(ledger)
    bench.pend("a")
    ledger.sessions.end("session", 200.0)
    async with bench.running() as worker:
        await bench.judged(1)
        bench.pend("b", at=ledger.database.clock())
        ledger.sessions.end("session", ledger.database.clock())
        worker.notify()
        await bench.judged(2)
    assert [text[0] for text in bench.asked] == ["a", "b"]


async def test_what_cannot_be_trained_is_left_out_and_a_stopped_worker_loses_nothing(ledger: Ledger) -> None:
    hanging = asyncio.Event()

    class Hanging(FakeEngine):
        async def generate(self, payload: dict[str, Any], owner: str | None = None) -> dict[str, Any]:
            hanging.set()
            await asyncio.Event().wait()
            return {}

    bench = Bench(ledger)
    bench.pend("a")
    ledger.turns.record(make_turn("side", kind="side"))
    ledger.sessions.end("session", 200.0)
    judge = JudgeClient(Hanging(), bench.tokenizer, "full", JudgeSampling())
    teacher = TeacherScorer(policy=Hanging(), teacher=Hanging(), render=bench.render, concurrency=1)
    worker = JudgeWorker(
        *(ledger, bench.method, judge, teacher, Limits(0.6, 2, 100), JudgeMetrics(CollectorRegistry())),
        judge.answers,
        SETTINGS,
    )
    stop = asyncio.Event()
    task = asyncio.create_task(worker.run(stop))
    await asyncio.wait_for(hanging.wait(), 10.0)
    stop.set()
    await asyncio.wait_for(task, 10.0)
    assert ledger.turns.get("a").state == "pending"
    async with bench.running():
        await bench.judged(1)
    assert [text[0] for text in bench.asked] == ["a"]
