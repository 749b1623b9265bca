"""The rules that a policy could dodge a verdict by are part of the judge loop, and a person's word outranks them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openclaw_combine_method import Combine
from openclaw_opd_method import OnPolicyDistillation

from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.judge.hygiene import Limits
from openclaw.ledger.records import Feedback, VersionSpan
from openclaw.ledger.store import Ledger
from tests.helpers.fake_engine import FakeEngine
from tests.unit.judge.test_judge_worker import CONFIG, HINT_ANSWER, Bench, judged, until

QUESTION = {"role": "assistant", "content": "Which of the two do you mean?"}
TOOL_NEXT = [{"role": "tool", "content": "ok", "tool_call_id": "c"}]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


async def judge(bench: Bench, next_state: Any = USER_NEXT, **changes: Any) -> Any:
    """Judge one turn; return its record."""
    bench.ledger.turns.record(make_turn(**changes))
    bench.ledger.turns.record_next_state("turn-0", next_state, 102.0)
    async with bench.running():
        await until(judged(bench))
    [record] = bench.ledger.views.turn_records()
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
    ledger.turns.record(make_turn(response_message=QUESTION))
    ledger.turns.record_next_state("turn-0", USER_NEXT, 102.0)
    ledger.feedback.record(Feedback(turn_id="turn-0", created_at=103.0, thumbs="up"), USER_NEXT)
    bench = Bench(ledger, FakeEngine(lambda _: "\\boxed{0}"))
    async with bench.running():
        await until(judged(bench))
    [sample] = ledger.samples.claim(0, 1)
    assert sample.reward == 1.0


CUT = {"finish_reason": "length"}
REPEATS = {"response_ids": [7] * 40, "response_logprobs": [-0.5] * 40}
FRAGMENT = {"response_ids": [7], "response_logprobs": [-0.5], "weight_versions": [VersionSpan("1", 0, 1)]}
OTHER = {
    "messages": [{"role": "user", "content": "Please explain the rules of chess."}],
    "response_message": {"role": "assistant", "content": "国际象棋的规则很简单,双方轮流走棋。"},
}
STRICT = Limits(0.6, 2, 10_000, ("truncated", "repetition", "off_language", "malformed_call"))
UNPRAISED = [(CUT, "truncated"), (REPEATS, "repetition"), (FRAGMENT, "too_short"), (OTHER, "off_language")]
UNPRAISED += [({**CUT, "malformed_calls": 1}, "truncated")]


@pytest.mark.parametrize(("changes", "rule"), UNPRAISED)
@pytest.mark.parametrize(("said", "rewards"), [("1", []), ("0", []), ("-1", [-1.0]), ("x", [])])
@pytest.mark.parametrize("stated", [False, True])
async def test_a_rule_forbids_praise_and_not_blame(
    ledger: Ledger, changes: dict[str, Any], rule: str, said: str, rewards: list[float], stated: bool
) -> None:
    """Whoever says it, the judge or a person; and no teacher reads the reply."""
    engine = FakeEngine(lambda _: f"\\boxed{{{said}}}", score=lambda ids: [-1.0] * len(ids))
    bench = Bench(ledger, engine, method=Combine(CONFIG), limits=STRICT)
    if stated:
        ledger.turns.record(make_turn(**changes))
        thumbs = {"1": "up", "-1": "down"}.get(said)
        feedback = Feedback(turn_id="turn-0", created_at=103.0, thumbs=thumbs, score=None if thumbs else 0.0)  # type: ignore[arg-type]
        ledger.feedback.record(feedback, USER_NEXT)
        async with bench.running():
            await until(judged(bench))
        [record] = ledger.views.turn_records()
    else:
        record = await judge(bench, **changes)
    assert [each.sample.reward for each in record.samples] == rewards
    assert [each.sample.teacher_log_probs for each in record.samples] == [None] * len(rewards)
    assert record.turn.reason == (None if rewards else rule if said != "x" or stated else "no_quorum")
    degenerate = rule in ("truncated", "repetition") and record.turn.reason != "no_quorum"
    assert ledger.views.degenerate_share(("truncated", "repetition")) == degenerate, "a fuse counts it, blamed or not"


@pytest.mark.parametrize(("changes", "rule"), UNPRAISED)
async def test_a_method_without_scores_asks_nobody_about_such_a_reply(
    ledger: Ledger, changes: dict[str, Any], rule: str
) -> None:
    bench = Bench(ledger, FakeEngine(lambda _: HINT_ANSWER), method=OnPolicyDistillation(CONFIG), limits=STRICT)
    record = await judge(bench, **changes)
    assert (record.turn.reason, bench.engine.payloads) == (rule, [])


async def test_turns_late_in_a_chain_of_calls_ask_no_judge(ledger: Ledger) -> None:
    asked: list[Any] = []

    def answer(payload: dict[str, Any]) -> str:
        asked.append(payload)
        return "\\boxed{1}"

    chain = [{"role": "user", "content": "Go."}, *[{"role": "assistant", "content": ""}, *TOOL_NEXT] * 8]
    record = await judge(Bench(ledger, FakeEngine(answer)), TOOL_NEXT, messages=chain)
    assert (record.turn.reason, asked) == ("tool_turns", [])
