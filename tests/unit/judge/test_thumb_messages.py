"""A message that is only a thumb is the person's opinion, wherever it arrives: no judge decides it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openclaw_combine_method import Combine
from openclaw_opd_method import OnPolicyDistillation
from openclaw_rl_method import BinaryRL

from lab.testkit.ledger_records import make_turn
from openclaw.ledger.feedback import as_next_state, judged_messages, opinion
from openclaw.ledger.records import Feedback, Verdict
from openclaw.ledger.store import Ledger
from openclaw.messages.thumbs import thumb_of
from tests.helpers.conversations import tool, user
from tests.unit.judge.test_judge_feedback import bench_of, judge

UP = [
    "👍",
    "👍🏻",
    "👍🏿",
    "👍️",
    "👍︎",
    "👍👍👍",
    "👍!",
    "👍！",
    "👍🏽👍🏽。",
    ":+1:",
    ":thumbsup:",
    ":thumbs_up:",
    ":+1::skin-tone-3:",
    "+1",
    "+1!",
    "＋1",
]
DOWN = [
    "👎",
    "👎🏻",
    "👎🏿",
    "👎️",
    "👎👎🏽",
    "👎.",
    ":-1:",
    ":thumbsdown:",
    ":thumbs_down:",
    ":-1::skin-tone-6:",
    "-1",
    "−1",
    "–1",
]
NONE = [
    "",
    "!",
    "👌",
    "👍👎",
    "👍 but shorter",
    "nice 👍",
    "+10",
    "-12",
    "-1.5",
    "1",
    "1+1",
    "+1+1",
    "+1 -1",
    ":+1",
    "-1 pear",
]


@pytest.mark.parametrize(
    ("text", "thumb"),
    [*((text, "up") for text in UP), *((text, "down") for text in DOWN), *((text, None) for text in NONE)],
)
def test_what_is_a_thumb(text: str, thumb: str | None) -> None:
    assert thumb_of(text) == thumb
    assert thumb_of(f" {text}\n") == thumb
    assert thumb_of(f"{text} {text}") == thumb


@pytest.mark.parametrize("reply", ["What is 3 - 4?", "**What is 3 - 4?**", "最后得到什么？", "(right?)"])
def test_after_a_question_a_signed_one_is_the_answer(reply: str) -> None:
    assert thumb_of("-1", reply) is thumb_of("+1", reply) is None
    assert thumb_of("👎", reply) == thumb_of(":-1:", reply) == "down"
    assert thumb_of("-1", f"{reply} It is -1.") == "down"


def test_a_long_message_costs_no_time() -> None:
    for text in ("👍" * 20_000, "+1 " * 10_000, "+1" + "." * 20_000, ":+1:" * 10_000):
        assert thumb_of(text) == "up"
        assert thumb_of(f"{text}x") is None


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.turns.record(make_turn())
    return ledger


@pytest.mark.parametrize(("method", "trains"), [(BinaryRL, True), (Combine, True), (OnPolicyDistillation, False)])
@pytest.mark.parametrize(
    ("said", "score"), [("👍", 1), ([{"type": "text", "text": "👎🏽"}], -1), ("[Sat 2026-11-21 08:05 UTC] +1", 1)]
)
async def test_a_typed_thumb_is_the_score_and_no_judge_is_asked(
    ledger: Ledger, method: Any, trains: bool, said: Any, score: int
) -> None:
    ledger.turns.record_next_state("turn-0", [{"role": "user", "content": said}], 105.0)
    bench = bench_of(ledger, method)
    record = await judge(bench)
    assert (record.verdict.score, record.verdict.score_source, record.verdict.hint) == (score, "feedback", None)
    assert bench.engine.payloads == []
    assert [sample.reward for sample in ledger.samples.claim(0, 5)] == ([float(score)] if trains else [])


async def test_what_a_tool_said_before_the_thumb_is_still_read(ledger: Ledger) -> None:
    ledger.turns.record_next_state("turn-0", [tool("file"), user("👎")], 105.0)
    turn = ledger.turns.get("turn-0")
    assert judged_messages(turn, opinion((), turn)) == [tool("file")]
    assert opinion((), turn).score == -1


def feedback(at: float, **said: Any) -> Feedback:
    return Feedback(turn_id="turn-0", created_at=at, **said)


def test_of_a_thumb_in_the_chat_and_one_beside_it_the_last_counts(ledger: Ledger) -> None:
    ledger.turns.record_next_state("turn-0", [user("👍")], 105.0)
    turn = ledger.turns.get("turn-0")
    assert opinion([feedback(104.0, thumbs="down")], turn).score == 1
    assert opinion([feedback(106.0, thumbs="down")], turn).score == -1
    assert opinion([feedback(106.0, text="fine")], turn).score == 1


def test_a_comment_that_is_a_thumb_is_one(ledger: Ledger) -> None:
    stated = feedback(110.0, text="👎")
    ledger.feedback.record(stated, as_next_state(stated))
    turn = ledger.turns.get("turn-0")
    assert opinion([stated], turn) == opinion([feedback(110.0, thumbs="down")])
    assert judged_messages(turn, opinion([stated], turn)) == []


async def test_the_verdict_that_a_log_kept_stays(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.logs.record("session", [(make_turn(), Verdict(score=-1))])
    ledger.turns.record_next_state("turn-0", [user("👍")], 105.0)
    assert (await judge(bench_of(ledger, BinaryRL))).verdict == Verdict(score=-1)
