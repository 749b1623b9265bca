"""Every pending turn is judged exactly once, and a failure of the machinery is never a score."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from openclaw_combine_method import Combine
from openclaw_rl_method import BinaryRL
from prometheus_client import CollectorRegistry

from lab.testkit.ledger_records import USER_NEXT, make_turn
from lab.testkit.tiny_random import build_tokenizer
from openclaw.exceptions import EngineRefusedError, EngineUnavailableError
from openclaw.judge import worker as worker_module
from openclaw.judge.client import EngineHttp, JudgeClient, JudgeSampling, count_tokens
from openclaw.judge.endpoint import EndpointJudge
from openclaw.judge.hygiene import Limits
from openclaw.judge.interface import Question
from openclaw.judge.teacher import TeacherScorer
from openclaw.judge.voting import CASTINGS, JudgeMetrics
from openclaw.judge.worker import GAVE_UP, NO_QUORUM, JudgeWorker, WorkerSettings
from openclaw.ledger.exceptions import LedgerUnavailableError
from openclaw.ledger.logs import ReplyScores
from openclaw.ledger.probes import drawn, part_of
from openclaw.ledger.records import PROBE, PlainPart, Tokens, Verdict, Vote
from openclaw.ledger.store import Ledger
from openclaw.lessons.lesson import UNDER_LESSON
from openclaw.owners import stored_id
from openclaw.training.samples import make_sample
from tests.helpers.fake_engine import FakeEngine, scripted_transport

HINT_ANSWER = "[HINT_START]Write plain prose.[HINT_END] \\boxed{1}"
LIMITS = Limits(temperature=0.6, min_response_tokens=2, max_tokens=100)
SETTINGS = WorkerSettings(concurrency=3, timeout=60.0, poll_seconds=0.02, first_pause=0.0)
CONFIG: Any = SimpleNamespace(prm_m=1)


def votes(count: int) -> Any:
    """Return a configuration with ``count`` votes of each judge."""
    return SimpleNamespace(prm_m=count)


@dataclass
class Bench:
    """A worker over a fresh ledger with a scripted judge."""

    ledger: Ledger
    engine: FakeEngine
    settings: WorkerSettings = SETTINGS
    method: Any = field(default_factory=lambda: BinaryRL(CONFIG))
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    up: bool = True
    """Whether the engines answer a probe."""
    limits: Limits = LIMITS

    async def answers(self) -> bool:
        return self.up

    @staticmethod
    def render(messages: Any, *_: Any) -> list[int]:
        return [9, 9, 9, 9, 9] if "hint / instruction" in str(messages) else make_turn().prompt_ids

    def worker(self) -> JudgeWorker:
        teacher = TeacherScorer(policy=self.engine, teacher=self.engine, render=self.render, concurrency=1)
        judge = JudgeClient(self.engine, build_tokenizer(), "brief", JudgeSampling())
        metrics = JudgeMetrics(self.registry)
        return JudgeWorker(self.ledger, self.method, judge, teacher, self.limits, metrics, self.answers, self.settings)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[JudgeWorker]:
        stop, worker = asyncio.Event(), self.worker()
        task = asyncio.create_task(worker.run(stop))
        try:
            yield worker
        finally:
            stop.set()
            await asyncio.wait_for(task, 10.0)

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    def pend(self, turn_id: str = "turn-0", **changes: Any) -> None:
        self.ledger.turns.record(make_turn(turn_id, **changes))
        self.ledger.turns.record_next_state(turn_id, USER_NEXT, 102.0)


async def until(condition: Callable[[], bool]) -> None:
    """Return when ``condition`` holds; fail after ten seconds."""
    async with asyncio.timeout(10.0):
        while not condition():
            await asyncio.sleep(0.005)


def judged(bench: Bench, count: int = 1) -> Callable[[], bool]:
    return lambda: bench.ledger.views.counts()["turns"].get("judged", 0) == count


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


async def test_pending_turn_becomes_a_sample(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    spans: list[dict[str, Any]] = []
    monkeypatch.setattr(worker_module, "record_span", lambda name, *times, **said: spans.append({"name": name, **said}))
    bench = Bench(ledger, FakeEngine(lambda _: "\\boxed{-1}"))
    bench.pend()
    async with bench.running():
        # Counted after the commit, so that the worker may not be stopped in between.
        await until(lambda: bench.count("openclaw_judge_turns_total", outcome="sample") == 1)
    [sample] = ledger.samples.claim(0, 5)
    assert sample.reward == -1.0
    [record] = ledger.judging.judged("session")
    assert [(vote.judge, vote.value) for vote in record.verdict.votes] == [("prm", -1)]
    assert bench.count("openclaw_judge_votes_total", judge="prm", value="-1") == 1
    assert spans == [{"name": "judge", "turn": "turn-0", "outcome": "sample", "votes": 1}]


async def test_a_verdict_of_a_log_is_kept_and_only_the_teacher_reads_it(ledger: Ledger) -> None:
    kept = Verdict(score=-1, hint="Write plain prose.", votes=(Vote("prm", "\\boxed{-1}", -1),))
    bench = Bench(ledger, FakeEngine(score=lambda ids: [-0.5] * len(ids)), method=Combine(CONFIG))
    turn = make_turn("of-a-log", state="unscored", next_state=USER_NEXT, next_state_at=102.0)
    ledger.logs.record("session", [(turn, kept)])
    scores = ReplyScores(turn.prompt_ids, turn.response_ids, turn.response_logprobs, "1")
    ledger.logs.record_scores([(ledger.turns.get("of-a-log"), scores)])
    async with bench.running():
        await until(judged(bench))
    [record] = ledger.judging.judged("session")
    assert replace(record.verdict, teacher_log_probs=None, teacher_versions=()) == kept
    assert all(payload.get("return_logprob") for payload in bench.engine.payloads), "no judge was asked"
    [sample] = ledger.samples.claim(0, 5)
    assert (sample.reward, sample.teacher_log_probs, sample.metadata["scored"]) == (-1.0, turn.response_logprobs, True)


async def test_a_turn_of_a_log_that_keeps_its_verdict_may_become_a_probe(ledger: Ledger) -> None:
    name = next(
        each for each in map(str, range(99)) if drawn(part_of(each, "of-a-log", 0), 0.5, ledger.probes.draw_key())
    )
    bench = Bench(ledger, FakeEngine(score=lambda ids: [-0.5] * len(ids)), replace(SETTINGS, gate_share=0.5))
    turn = make_turn("of-a-log", session_id=name, state="unscored", next_state=USER_NEXT, next_state_at=102.0)
    ledger.logs.record(name, [(turn, Verdict(score=-1))])
    ledger.logs.record_scores([(turn, ReplyScores(turn.prompt_ids, turn.response_ids, turn.response_logprobs, "1"))])
    async with bench.running():
        await until(judged(bench))
    assert ledger.turns.get("of-a-log").reason == PROBE
    assert ledger.samples.ready_count() == 0


async def test_notify_judges_without_waiting_for_the_poll(ledger: Ledger) -> None:
    bench = Bench(ledger, FakeEngine(lambda _: "\\boxed{1}"), replace(SETTINGS, poll_seconds=3600.0))
    async with bench.running() as worker:
        bench.pend()
        worker.notify()
        await until(judged(bench))


async def test_unreachable_judge_leaves_the_turn_pending_then_it_is_judged(ledger: Ledger) -> None:
    failures = 3

    def answer(_: dict[str, Any]) -> str:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise EngineUnavailableError("connection refused")
        return "\\boxed{1}"

    bench = Bench(ledger, FakeEngine(answer))
    bench.pend()
    async with bench.running():
        await until(judged(bench))
    assert bench.count("openclaw_judge_failures_total", kind="unavailable") == 3
    assert ledger.views.counts()["judge_attempts_failed"] == 3
    [sample] = ledger.samples.claim(0, 5)
    assert sample.reward == 1.0


async def test_failed_turn_waits_longer_each_time_and_others_go_on(ledger: Ledger) -> None:
    def answer(payload: dict[str, Any]) -> str:
        raise EngineUnavailableError("connection refused")

    bench = Bench(ledger, FakeEngine(answer), replace(SETTINGS, first_pause=1000.0))
    bench.pend()
    async with bench.running():
        await until(lambda: bench.count("openclaw_judge_failures_total", kind="unavailable") == 1)
        await until(lambda: ledger.views.counts()["judge_attempts_failed"] == 1)
        assert ledger.judging.pending(10) == []
        bench.engine._answer = lambda _: "\\boxed{1}"
        bench.pend("turn-1")
        await until(judged(bench))
    assert ledger.turns.get("turn-0").state == "pending"
    assert ledger.turns.get("turn-1").state == "judged"


async def test_turn_that_takes_too_long_stays_pending(ledger: Ledger) -> None:
    class Hanging(FakeEngine):
        async def generate(self, payload: dict[str, Any], owner: str | None = None) -> dict[str, Any]:
            await asyncio.Event().wait()
            return {}

    bench = Bench(ledger, Hanging(), replace(SETTINGS, timeout=0.01, first_pause=1000.0))
    bench.pend()
    async with bench.running():
        await until(lambda: ledger.views.counts()["judge_attempts_failed"] == 1)
    assert bench.count("openclaw_judge_failures_total", kind="timeout") == 1
    assert ledger.turns.get("turn-0").state == "pending"


async def test_bug_in_a_method_is_counted_and_leaves_the_turn_pending(ledger: Ledger) -> None:
    class Broken(BinaryRL):
        def samples(self, turn: Any, verdict: Any) -> Any:
            raise KeyError("oops")

    bench = Bench(ledger, FakeEngine(lambda _: "\\boxed{1}"), replace(SETTINGS, first_pause=1000.0), Broken(CONFIG))
    bench.pend()
    async with bench.running():
        await until(lambda: ledger.views.counts()["judge_attempts_failed"] == 1)
    assert bench.count("openclaw_judge_failures_total", kind="internal") == 1


async def test_refused_question_is_final_with_a_reason(ledger: Ledger) -> None:
    def answer(_: dict[str, Any]) -> str:
        raise EngineRefusedError("HTTP 400: prompt too long")

    bench = Bench(ledger, FakeEngine(answer))
    bench.pend()
    async with bench.running():
        await until(judged(bench))
    assert ledger.views.counts()["turn_reasons"] == {"judge_refused": 1}


async def test_turn_with_a_defect_is_not_shown_to_the_judge(ledger: Ledger) -> None:
    bench = Bench(ledger, FakeEngine(lambda _: "\\boxed{1}"))
    bench.pend(temperature=1.0)
    async with bench.running():
        await until(judged(bench))
    assert bench.engine.payloads == []
    assert ledger.views.counts()["turn_reasons"] == {"temperature": 1}


async def test_stopping_leaves_turns_pending_and_a_new_worker_goes_on(ledger: Ledger) -> None:
    class Hanging(FakeEngine):
        async def generate(self, payload: dict[str, Any], owner: str | None = None) -> dict[str, Any]:
            self.payloads.append(payload)
            await asyncio.Event().wait()
            return {}

    first = Bench(ledger, Hanging())
    for number in range(5):
        first.pend(f"turn-{number}")
    async with first.running():
        await until(lambda: len(first.engine.payloads) == 3)
    assert ledger.views.counts()["turns"] == {"pending": 5}
    assert len(first.engine.payloads) == SETTINGS.concurrency
    second = Bench(ledger, FakeEngine(lambda _: "\\boxed{1}"))
    async with second.running():
        await until(judged(second, 5))
    assert ledger.samples.ready_count() == 5


async def test_two_workers_give_one_sample_per_turn(ledger: Ledger) -> None:
    bench = Bench(ledger, FakeEngine(lambda _: "\\boxed{1}"))
    other = Bench(Ledger(ledger.path), FakeEngine(lambda _: "\\boxed{1}"))
    for number in range(8):
        bench.pend(f"turn-{number}")
    async with bench.running(), other.running():
        await until(judged(bench, 8))
    assert ledger.samples.ready_count() == 8


async def test_hint_brings_teacher_logprobs(ledger: Ledger) -> None:
    def answer(payload: dict[str, Any]) -> str:
        return HINT_ANSWER

    bench = Bench(ledger, FakeEngine(answer, score=lambda ids: [-float(len(ids))] * len(ids)), method=Combine(CONFIG))
    bench.pend()
    async with bench.running():
        await until(judged(bench))
    [sample] = ledger.samples.claim(0, 5)
    turn = ledger.turns.get("turn-0")
    assert sample.teacher_log_probs == pytest.approx([value - 1.0 for value in turn.response_logprobs])
    assert sample.metadata["hint"] == "Write plain prose."


async def test_teacher_that_refuses_leaves_the_score_and_is_counted(ledger: Ledger) -> None:
    class TooLong(FakeEngine):
        async def generate(self, payload: dict[str, Any], owner: str | None = None) -> dict[str, Any]:
            if payload.get("return_logprob"):
                raise EngineRefusedError("HTTP 400: too long")
            return {"text": HINT_ANSWER, "meta_info": {"finish_reason": {"type": "stop"}}}

    bench = Bench(ledger, TooLong(), method=Combine(CONFIG))
    bench.pend()
    async with bench.running():
        await until(judged(bench))
    assert bench.count("openclaw_judge_teacher_failures_total", kind="refused") == 1
    [sample] = ledger.samples.claim(0, 5)
    assert (sample.reward, sample.teacher_log_probs) == (1.0, None)


async def test_a_session_of_zeros_trains_nothing(ledger: Ledger) -> None:
    """Finding A4: its last turn became a sample with a small reward."""
    bench = Bench(ledger, FakeEngine(lambda _: "\\boxed{0}"))
    bench.pend("turn-0")
    bench.pend("turn-1", index=1)
    async with bench.running() as worker:
        await until(judged(bench, 2))
        ledger.sessions.end("session", 200.0)
        worker.notify()
        await until(lambda: not ledger.judging.finished_sessions(5))
    assert ledger.views.counts()["samples"] == {}
    assert ledger.views.counts()["turn_reasons"] == {"score_zero": 2}


@pytest.mark.parametrize(("answer", "invalid"), [("I cannot say.", "no_box"), ("\\boxed{7}", "other_box")])
async def test_garbage_answers_are_asked_again_and_train_nothing(ledger: Ledger, answer: str, invalid: str) -> None:
    """Finding A4: without a valid vote the score was 0."""
    bench = Bench(ledger, FakeEngine(lambda _: answer), method=BinaryRL(votes(2)))
    bench.pend()
    async with bench.running():
        await until(judged(bench))
    [found] = ledger.judging.judged("session")
    assert (found.turn.reason, found.verdict.score) == (NO_QUORUM, None)
    assert ledger.samples.ready_count() == 0
    assert len(bench.engine.payloads) == 2 * CASTINGS
    assert bench.count("openclaw_judge_votes_recast_total", judge="prm") == 2 * (CASTINGS - 1)
    assert bench.count("openclaw_judge_votes_total", judge="prm", value=invalid) == 2


async def test_votes_without_a_quorum_are_cast_again(ledger: Ledger) -> None:
    answers = iter(["\\boxed{1}", "?", "?", "\\boxed{1}", "\\boxed{-1}"])
    bench = Bench(ledger, FakeEngine(lambda _: next(answers)), method=BinaryRL(votes(3)))
    bench.pend()
    async with bench.running():
        await until(judged(bench))
    [sample] = ledger.samples.claim(0, 5)
    assert sample.reward == 1.0


async def test_one_vote_of_three_is_no_majority(ledger: Ledger) -> None:
    """Finding A4: ``(1, None, None)`` counted as +1."""
    answers = iter(["\\boxed{1}", *["?"] * 20])
    bench = Bench(ledger, FakeEngine(lambda _: next(answers)), method=BinaryRL(votes(3)))
    bench.pend()
    async with bench.running():
        await until(judged(bench))
    assert ledger.views.counts()["turn_reasons"] == {NO_QUORUM: 1}


async def test_a_turn_that_fails_again_and_again_is_given_up(ledger: Ledger) -> None:
    """Finding A7: it was tried for ever, and its session never closed."""

    def answer(_: dict[str, Any]) -> str:
        raise EngineUnavailableError("HTTP 500 for this turn")

    bench = Bench(ledger, FakeEngine(answer), replace(SETTINGS, attempts=3))
    bench.pend()
    ledger.sessions.end("session", 200.0)
    async with bench.running():
        await until(judged(bench))
        await until(lambda: not ledger.judging.finished_sessions(5))
    assert ledger.views.counts()["turn_reasons"] == {GAVE_UP: 1}
    assert len(bench.engine.payloads) == 3


async def test_an_unreadable_tool_call_is_blamed_without_a_judge(ledger: Ledger) -> None:
    """A policy that breaks its calls where it expects blame is not spared the blame."""
    bench = Bench(ledger, FakeEngine(lambda _: "\\boxed{1}"))
    bench.pend(malformed_calls=1)
    async with bench.running():
        await until(judged(bench))
    [sample] = ledger.samples.claim(0, 5)
    assert sample.reward == -1.0
    assert ledger.views.outcome("turn-0").score_source == "rule"
    assert bench.engine.payloads == []


async def test_the_same_reply_again_gives_no_second_sample(ledger: Ledger) -> None:
    bench = Bench(ledger, FakeEngine(lambda _: "\\boxed{1}"))
    bench.pend("turn-0", conversation=b"same")
    async with bench.running() as worker:
        await until(judged(bench))
        bench.pend("turn-1", index=1, conversation=b"same")
        bench.pend("turn-2", index=2, conversation=b"same", session_id="another")
        worker.notify()
        await until(judged(bench, 3))
    assert ledger.turns.get("turn-1").reason == "duplicate"
    assert ledger.samples.ready_count() == 2


async def test_the_same_reply_again_gives_a_second_sample_where_the_rule_is_off(ledger: Ledger) -> None:
    rules = [rule for rule in LIMITS.rules if rule != "duplicate"]
    bench = Bench(ledger, FakeEngine(lambda _: "\\boxed{1}"), limits=replace(LIMITS, rules=rules))
    bench.pend("turn-0", conversation=b"same")
    async with bench.running() as worker:
        await until(judged(bench))
        bench.pend("turn-1", index=1, conversation=b"same")
        worker.notify()
        await until(judged(bench, 2))
    assert ledger.samples.ready_count() == 2


async def test_an_outage_gives_up_no_turn(ledger: Ledger) -> None:
    def answer(_: dict[str, Any]) -> str:
        raise EngineUnavailableError("connection refused")

    bench = Bench(ledger, FakeEngine(answer), replace(SETTINGS, attempts=2), up=False)
    bench.pend()
    async with bench.running():
        await until(lambda: len(bench.engine.payloads) >= 5)
    assert ledger.turns.get("turn-0").state == "pending"


def test_method_with_a_teacher_needs_one(ledger: Ledger) -> None:
    judge = JudgeClient(FakeEngine(), build_tokenizer(), "brief", JudgeSampling())
    with pytest.raises(ValueError, match="needs a teacher"):
        JudgeWorker(
            ledger,
            Combine(CONFIG),
            judge,
            None,
            LIMITS,
            JudgeMetrics(CollectorRegistry()),
            Bench(ledger, FakeEngine()).answers,
        )


async def test_a_session_that_cannot_be_closed_holds_up_no_other(ledger: Ledger) -> None:
    class Fragile(BinaryRL):
        def session_samples(self, session: Any) -> Any:
            if session[0].turn.session_id != "good":
                raise KeyError("a bug")
            return super().session_samples(session)

    settings = replace(SETTINGS, first_pause=3600.0, longest_pause=3600.0)
    bench = Bench(ledger, FakeEngine(lambda _: "\\boxed{0}"), settings, Fragile(CONFIG))
    names = ["bad-0", "bad-1", "bad-2", "good"]
    for at, name in enumerate(names):
        bench.pend(f"turn-{name}", session_id=name)
        ledger.sessions.end(name, 200.0 + at)
    async with bench.running():
        await until(lambda: bench.count("openclaw_judge_session_failures_total", reason="KeyError") == 3)
        await until(lambda: ledger.judging.finished_sessions(10) == names[:3])


async def test_a_turn_that_cannot_be_postponed_is_counted(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def postpone(*_: Any) -> None:
        raise OSError("disk full")

    def answer(_: dict[str, Any]) -> str:
        raise EngineUnavailableError("gone")

    monkeypatch.setattr(ledger.judging, "postpone", postpone)
    bench = Bench(ledger, FakeEngine(answer))
    bench.pend()
    async with bench.running():
        await until(lambda: bench.count("openclaw_judge_failures_total", kind="postpone") >= 1)


async def test_a_verdict_waits_for_the_ledger_and_no_judge_is_asked_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(ledger, FakeEngine(lambda _: "\\boxed{1}"))
    bench.pend()
    record, refusals = ledger.judging.record, 3

    def full(*arguments: Any) -> None:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise LedgerUnavailableError("the disk is full")
        record(*arguments)

    monkeypatch.setattr(ledger.judging, "record", full)
    async with bench.running():
        await until(judged(bench))
    assert bench.count("openclaw_judge_failures_total", kind="ledger") == 3
    assert bench.count("openclaw_judge_votes_total", judge="prm", value="1") == 1
    assert ledger.views.counts()["judge_attempts_failed"] == 0


async def test_a_turn_forgotten_while_it_is_judged_is_let_go(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    def forget(_: dict[str, Any]) -> str:
        ledger.sessions.forget("gone")
        return "\\boxed{1}"

    bench = Bench(ledger, FakeEngine(forget))
    bench.pend(session_id="gone")
    with caplog.at_level("INFO"):
        async with bench.running():
            await until(lambda: "was deleted while it was judged" in caplog.text)
    assert ledger.views.counts()["turns"] == {}
    assert ledger.samples.ready_count() == 0


async def test_a_share_of_the_turns_becomes_probes_and_gives_no_sample(ledger: Ledger) -> None:
    bench = Bench(ledger, FakeEngine(lambda _: "\\boxed{1}"), replace(SETTINGS, gate_share=0.5))
    names = [f"turn-{number}" for number in range(24)]
    for name in names:
        bench.pend(name, session_id=name)
    async with bench.running():
        await until(judged(bench, len(names)))
    wanted = {name for name in names if drawn(part_of(name, name, 0), 0.5, ledger.probes.draw_key())}
    assert 0 < len(wanted) < len(names)
    records = {record.turn.id: record for record in ledger.views.turn_records()}
    assert {name for name, record in records.items() if record.turn.reason == PROBE} == wanted
    assert all(bool(record.samples) == (name not in wanted) for name, record in records.items())
    assert all(record.verdict is not None and record.verdict.score == 1 for record in records.values())
    assert bench.count("openclaw_judge_turns_total", outcome="probe") == len(wanted)


async def test_a_turn_under_lessons_becomes_a_probe_like_any_other(ledger: Ledger) -> None:
    """Otherwise the gate would have no opinion of a person as long as lessons stand in the prompts."""
    bench = Bench(ledger, FakeEngine(lambda _: "\\boxed{1}"), replace(SETTINGS, gate_share=0.5))
    names = [f"turn-{number}" for number in range(24)]
    for name in names:
        bench.pend(name, session_id=name, plain=PlainPart(0, 1, (8,)))
    async with bench.running():
        await until(judged(bench, len(names)))
    wanted = {name for name in names if drawn(part_of(name, name, 0), 0.5, ledger.probes.draw_key())}
    assert 0 < len(wanted) < len(names)
    reasons = {record.turn.id: record.turn.reason for record in ledger.views.turn_records()}
    assert reasons == {name: PROBE if name in wanted else UNDER_LESSON for name in names}


async def test_a_session_with_a_probe_gives_no_samples_as_a_whole(ledger: Ledger) -> None:
    class Whole(BinaryRL):
        def session_samples(self, judged: Any) -> list[tuple[str, Any]]:
            return [(judged[0].turn.id, make_sample(judged[0].turn, 1.0, score=1))]

    method: Any = Whole(CONFIG)
    bench = Bench(ledger, FakeEngine(lambda _: "\\boxed{1}"), replace(SETTINGS, gate_share=0.5), method)
    names = [f"turn-{number}" for number in range(24)]
    for name in names:
        bench.pend(name, session_id=name)
        ledger.sessions.end(name, 103.0)
    async with bench.running():
        await until(judged(bench, len(names)))
        await until(lambda: not ledger.judging.finished_sessions(99))
    for record in ledger.views.turn_records():
        assert len(record.samples) == (0 if record.turn.reason == PROBE else 2)


async def test_every_answer_of_judge_and_teacher_is_metered_for_the_turns_owner(ledger: Ledger) -> None:
    """Also those of an attempt that failed, and of a verdict that new words made void."""
    answered = scored = 0
    words_came = False

    def handle(request: httpx.Request) -> httpx.Response:
        nonlocal answered, scored, words_came
        payload = json.loads(request.content)
        if payload.get("return_logprob"):
            scored += 1
            if scored == 1:
                return httpx.Response(500, text="away")
        prompt = len(payload["input_ids"])
        meta: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": 7, "finish_reason": {"type": "stop"}}
        if payload.get("return_logprob"):
            first, *others = payload["input_ids"][payload["logprob_start_len"] :]
            entries = [[None, first, None], *([-0.5, token, None] for token in others)]
            meta |= {"input_token_logprobs": entries, "weight_version": "1"}
        answered += prompt + 7
        if scored == 3 and not words_came:  # in the second attempt; each makes two calls at once
            words_came = True
            ledger.turns.replace_next_state("turn-0", [{"role": "user", "content": "No."}], 103.0)
        return httpx.Response(200, json={"text": HINT_ANSWER, "meta_info": meta})

    engine = EngineHttp(
        "http://judge", timeout=9.0, concurrency=9, retries=0, backoff=0.0, transport=httpx.MockTransport(handle)
    )
    bench = Bench(ledger, engine, method=Combine(CONFIG))  # type: ignore[arg-type]
    bench.pend(session_id=stored_id("alice", "s"))
    async with bench.running():
        await until(judged(bench))
        await until(lambda: bench.count("openclaw_judge_turns_total", outcome="sample") == 1)
    await engine.close()
    assert words_came
    assert bench.count("openclaw_judge_failures_total", kind="unavailable") == 1
    assert bench.count("openclaw_judge_failures_total", kind="feedback_arrived") == 1
    [day] = ledger.usage.days("", "9")
    assert (day.owner, day.tokens) == ("alice", Tokens(judged=answered))


async def test_an_endpoints_answers_are_counted_as_it_says() -> None:
    body = {"choices": [{"message": {"content": "\\boxed{1}"}}], "usage": {"prompt_tokens": 40, "completion_tokens": 2}}
    transport, _ = scripted_transport([body])
    judge = EndpointJudge(
        "http://judge/v1",
        model="m",
        key=None,
        variant="brief",
        sampling=JudgeSampling(),
        timeout=9.0,
        concurrency=2,
        transport=transport,
    )
    count = count_tokens()
    turn = make_turn()
    await judge.votes("prm", Question.about(turn.messages, turn.response_message, USER_NEXT), 3)
    await judge.close()
    assert count.tokens == 3 * 42
