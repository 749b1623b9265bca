"""What a person states outranks the judge, in each of the three methods."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from openclaw_combine_method import Combine
from openclaw_opd_method import OnPolicyDistillation
from openclaw_rl_method import BinaryRL

from lab.testkit.ledger_records import USER_NEXT, make_turn
from lab.testkit.tiny_random import build_tokenizer
from openclaw.ledger.feedback import as_next_state, weighted
from openclaw.ledger.records import Feedback, JudgedTurn, ScoreSource, Verdict
from openclaw.ledger.store import Ledger
from openclaw.training.samples import make_sample
from tests.helpers.fake_engine import FakeEngine
from tests.unit.judge.test_judge_worker import CONFIG, HINT_ANSWER, Bench, judged, until


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.turns.record(make_turn())
    return ledger


def state(ledger: Ledger, **said: Any) -> None:
    feedback = Feedback(turn_id="turn-0", created_at=110.0, **said)
    assert ledger.feedback.record(feedback, as_next_state(feedback)).applied


def bench_of(ledger: Ledger, method: Any) -> Bench:
    """A bench whose judges always disagree with the person: progress, and a hint when asked for one."""

    def answer(payload: dict[str, Any]) -> str:
        return HINT_ANSWER

    return Bench(ledger, FakeEngine(answer, lambda ids: [-0.5] * len(ids)), method=method(CONFIG))


async def judge(bench: Bench) -> JudgedTurn:
    async with bench.running():
        await until(judged(bench))
    [record] = bench.ledger.judging.judged("session")
    return record


@pytest.mark.parametrize(("method", "rewards"), [(BinaryRL, [-1.0]), (Combine, [-1.0]), (OnPolicyDistillation, [])])
async def test_a_thumb_is_the_score_and_no_judge_is_asked(ledger: Ledger, method: Any, rewards: list[float]) -> None:
    state(ledger, thumbs="down")
    bench = bench_of(ledger, method)
    record = await judge(bench)
    assert (record.verdict.score, record.verdict.score_source) == (-1, "feedback")
    assert record.verdict.votes == ()
    assert bench.engine.payloads == []
    samples = ledger.samples.claim(0, 5)
    assert [sample.reward for sample in samples] == rewards
    assert record.turn.reason == (None if rewards else "no_hint")


@pytest.mark.parametrize("method", [Combine, OnPolicyDistillation])
async def test_words_beside_a_thumb_become_a_hint(ledger: Ledger, method: Any) -> None:
    state(ledger, thumbs="down", text="No bold, please.")
    bench = bench_of(ledger, method)
    record = await judge(bench)
    assert {vote.judge for vote in record.verdict.votes} == {"hint"}
    assert (record.verdict.score, record.verdict.hint) == (-1, "Write plain prose.")
    [sample] = ledger.samples.claim(0, 5)
    assert sample.teacher_log_probs is not None
    assert sample.metadata["feedback_weight"] == 1.0
    assert sample.reward == (-1.0 if method is Combine else 0.0)


async def test_words_alone_are_judged_like_a_next_state(ledger: Ledger) -> None:
    state(ledger, text="No bold, please.")
    bench = bench_of(ledger, BinaryRL)
    record = await judge(bench)
    assert (record.verdict.score, record.verdict.score_source) == (1, "judge")
    assert [vote.judge for vote in record.verdict.votes] == ["prm"]
    [sample] = ledger.samples.claim(0, 5)
    assert "feedback_weight" not in sample.metadata


async def test_a_stated_score_of_zero_gives_no_sample(ledger: Ledger) -> None:
    state(ledger, score=0)
    record = await judge(bench_of(ledger, BinaryRL))
    assert (record.verdict.score, record.turn.reason) == (0, "score_zero")


async def test_feedback_beside_a_next_state(ledger: Ledger) -> None:
    ledger.turns.record_next_state("turn-0", USER_NEXT, 105.0)
    state(ledger, thumbs="up")
    record = await judge(bench_of(ledger, Combine))
    assert (record.verdict.score, record.verdict.score_source) == (1, "feedback")
    assert {vote.judge for vote in record.verdict.votes} == {"hint"}, "what the user wrote is still read for a hint"


async def test_the_choices_of_one_request_weigh_as_one_reply(ledger: Ledger) -> None:
    ids = ["chatcmpl-1", *(f"chatcmpl-1.{number}" for number in range(1, 8))]
    for turn_id in [*ids, "chatcmpl-12"]:
        ledger.turns.record(make_turn(turn_id))
        feedback = Feedback(turn_id=turn_id, created_at=110.0, thumbs="up")
        ledger.feedback.record(feedback, as_next_state(feedback))
    bench = bench_of(ledger, BinaryRL)
    async with bench.running():
        await until(judged(bench, 9))
    *choices, alone = sorted(ledger.samples.claim(0, 99), key=lambda sample: sample.metadata["turn_id"])[:9]
    assert [sample.reward for sample in choices] == [0.125] * 8
    assert {sample.metadata["feedback_weight"] for sample in choices} == {0.125}
    assert {sample.metadata["raw_reward"] for sample in choices} == {1.0}
    assert (alone.reward, alone.metadata["feedback_weight"]) == (1.0, 1.0)


@pytest.mark.parametrize(("source", "share"), [("judge", 1.0), ("rule", 1.0), ("feedback", 0.25)])
def test_only_feedback_is_shared_among_the_choices(source: ScoreSource, share: float) -> None:
    """A rule blames each choice for its own fault, so that a broken one never scores above the worst honest one."""
    turn = make_turn("chatcmpl-1.3")
    [sample] = weighted([make_sample(turn, -1.0, score=-1)], Verdict(score=-1, score_source=source), 1 / 4)
    assert sample.reward == -share
    assert sample.metadata.get("feedback_weight") == (share if source == "feedback" else None)


@pytest.mark.parametrize(
    ("said", "reward"),
    [({"action": "copied"}, 0.5), ({"action": "regenerated"}, -0.5), ({"action": "edited", "edit": "Plain 4."}, -1.0)],
)
async def test_what_a_person_does_with_a_reply_is_its_score_without_a_judge(
    ledger: Ledger, said: dict[str, Any], reward: float
) -> None:
    ledger.sessions.end("session", 105.0)
    state(ledger, **said)
    bench = bench_of(ledger, BinaryRL)
    record = await judge(bench)
    assert (record.verdict.score_source, record.verdict.votes) == ("feedback", ())
    [sample] = ledger.samples.claim(0, 1)
    assert sample.reward == reward


async def test_an_edited_reply_is_read_for_a_hint(ledger: Ledger) -> None:
    state(ledger, action="edited", edit="Only the number 4.")
    bench = bench_of(ledger, Combine)
    record = await judge(bench)
    assert record.verdict.score == -1
    assert {vote.judge for vote in record.verdict.votes} == {"hint"}
    prompts = [build_tokenizer().decode(payload["input_ids"]) for payload in bench.engine.payloads]
    assert any("I changed your reply to this:\nOnly the number 4." in prompt for prompt in prompts)


@pytest.mark.parametrize("words", ["No, I meant the second file.", "Das habe ich nicht gemeint, sondern das Bild."])
async def test_a_correction_in_words_is_a_score_and_a_hint(ledger: Ledger, words: str) -> None:
    ledger.turns.record_next_state("turn-0", [{"role": "user", "content": words}], 105.0)
    record = await judge(bench_of(ledger, Combine))
    assert (record.verdict.score, record.verdict.score_source) == (-1, "feedback")
    assert {vote.judge for vote in record.verdict.votes} == {"hint"}


async def test_a_choice_that_is_rated_before_the_others_are_stored_weighs_no_more(ledger: Ledger) -> None:
    ledger.turns.record(make_turn("chatcmpl-1.7"))
    assert ledger.turns.choices("chatcmpl-1.7") == 8, "the last choice is stored first"
    ledger.turns.record(make_turn("chatcmpl-1.6"))
    ledger.turns.record(make_turn("chatcmpl-1.7.1"))
    assert ledger.turns.choices("chatcmpl-1.6") == 8
    assert ledger.turns.choices("turn-0") == 1


async def test_feedback_while_the_turn_is_judged_is_not_missed(ledger: Ledger) -> None:
    ledger.turns.record_next_state("turn-0", USER_NEXT, 105.0)
    asked, go_on = asyncio.Event(), asyncio.Event()

    class Slow(FakeEngine):
        async def generate(self, payload: dict[str, Any], owner: str | None = None) -> dict[str, Any]:
            asked.set()
            await go_on.wait()
            return await super().generate(payload, owner)

    bench = Bench(ledger, Slow(lambda _: "\\boxed{1}"), method=BinaryRL(CONFIG))
    async with bench.running():
        await asyncio.wait_for(asked.wait(), 10.0)
        state(ledger, thumbs="down")
        go_on.set()
        await until(judged(bench))
    [sample] = ledger.samples.claim(0, 5)
    assert sample.reward == -1.0
    assert bench.count("openclaw_judge_failures_total", kind="feedback_arrived") == 1
    assert ledger.views.counts()["judge_attempts_failed"] == 0
