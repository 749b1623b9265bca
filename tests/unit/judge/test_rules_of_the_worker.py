"""The rules that a policy could dodge a verdict by are part of the judge loop, and a person's word outranks them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openclaw_combine_method import Combine

from openclaw.ledger.records import Feedback
from openclaw.ledger.store import Ledger
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.ledger_records import USER_NEXT, make_turn
from tests.unit.judge.test_judge_worker import CONFIG, HINT_ANSWER, Bench, judged, until

QUESTION = {"role": "assistant", "content": "Which of the two do you mean?"}
TOOL_NEXT = [{"role": "tool", "content": "ok", "tool_call_id": "c"}]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


async def judge(bench: Bench, next_state: Any = USER_NEXT, **changes: Any) -> Any:
    """Judge one turn; return its record."""
    bench.ledger.record_turn(make_turn(**changes))
    bench.ledger.record_next_state("turn-0", next_state, 102.0)
    async with bench.running():
        await until(judged(bench))
    [record] = bench.ledger.export_turns()
    return record


async def test_an_answered_question_is_not_progress(ledger: Ledger) -> None:
    record = await judge(Bench(ledger, FakeEngine(lambda _: "\\boxed{1}")), response_message=QUESTION)
    assert (record.turn.reason, record.samples) == ("asks_back", [])
    assert (record.verdict.score, record.verdict.score_source, record.verdict.votes[0].value) == (0, "rule", 1)


async def test_an_unwelcome_question_is_blamed_as_any_reply(ledger: Ledger) -> None:
    record = await judge(Bench(ledger, FakeEngine(lambda _: "\\boxed{-1}")), response_message=QUESTION)
    assert [each.sample.reward for each in record.samples] == [-1.0]
    assert record.verdict.score_source == "judge"


async def test_a_hint_teaches_under_an_answered_question(ledger: Ledger) -> None:
    def answer(payload: dict[str, Any]) -> str:
        return HINT_ANSWER  # the PRM reads its box as 1, the hint judge takes the hint

    engine = FakeEngine(answer, score=lambda ids: [-1.0] * len(ids))
    bench = Bench(ledger, engine, method=Combine(CONFIG))
    record = await judge(bench, response_message=QUESTION)
    [sample] = [each.sample for each in record.samples]
    assert sample.reward == 0.0
    assert sample.teacher_log_probs is not None


async def test_a_person_may_like_a_question(ledger: Ledger) -> None:
    ledger.record_turn(make_turn(response_message=QUESTION))
    ledger.record_next_state("turn-0", USER_NEXT, 102.0)
    ledger.record_feedback(Feedback(turn_id="turn-0", created_at=103.0, thumbs="up"), USER_NEXT)
    bench = Bench(ledger, FakeEngine(lambda _: "\\boxed{0}"))
    async with bench.running():
        await until(judged(bench))
    [sample] = ledger.claim_samples(0, 1)
    assert sample.reward == 1.0


async def test_turns_late_in_a_chain_of_calls_ask_no_judge(ledger: Ledger) -> None:
    asked: list[Any] = []

    def answer(payload: dict[str, Any]) -> str:
        asked.append(payload)
        return "\\boxed{1}"

    chain = [{"role": "user", "content": "Go."}, *[{"role": "assistant", "content": ""}, *TOOL_NEXT] * 8]
    record = await judge(Bench(ledger, FakeEngine(answer)), TOOL_NEXT, messages=chain)
    assert (record.turn.reason, asked) == ("tool_turns", [])
