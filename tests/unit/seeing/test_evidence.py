"""Nothing is claimed about learning that its interval does not say."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from openclaw.ledger.views import TurnFacts
from openclaw.runs.evidence import Share, difference, evidence

TURN = TurnFacts(
    number=1,
    id="turn",
    session_id="session",
    kind="main",
    state="judged",
    reason=None,
    created_at=0.0,
    finished_at=1.0,
    next_state_at=2.0,
    judged_at=3.0,
    judge_attempts=0,
    finish_reason="stop",
    temperature=0.6,
    top_p=1.0,
    response_tokens=3,
    is_first=True,
    elsewhere=False,
    version="0",
    score=1,
    score_source="judge",
    seconds=1.0,
    hinted=False,
    votes=(),
)


def replies(version: int, liked: int, judged: int) -> list[TurnFacts]:
    return [replace(TURN, version=str(version), score=1 if number < liked else -1) for number in range(judged)]


def test_wilson_is_the_published_interval() -> None:
    # Newcombe 1998, table I: 15 of 148 and 1 of 29.
    assert Share(15, 148).interval == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert Share(1, 29).interval == pytest.approx((0.0061, 0.1718), abs=5e-5)
    assert Share(0, 20).interval[0] == 0.0
    assert Share(0, 0).interval == (0.0, 1.0)


def test_the_difference_is_newcombes() -> None:
    # Newcombe 1998 II, table II, method 10: 56/70 - 48/80 is 0.2 (0.0524, 0.3339); 9/10 - 3/10 is 0.6 (0.1705, 0.8090).
    assert difference(Share(48, 80), Share(56, 70)) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert difference(Share(3, 10), Share(9, 10)) == pytest.approx((0.1705, 0.8090), abs=5e-5)


def test_better_worse_and_not_shown() -> None:
    low, high = replies(0, 10, 50), replies(9, 40, 50)
    better = evidence(low + high)
    assert better.verdict == "better"
    assert better.sentence.startswith("Yes: the judge liked 40 of 50 (80 %) of the first replies in the last third")
    assert "10 of 50 (20 %) in the first" in better.sentence
    assert "+60 points (95 % interval +42 to +72)" in better.sentence
    worse = evidence(replies(0, 40, 50) + replies(9, 10, 50))
    assert worse.verdict == "worse"
    assert worse.sentence.startswith("No, it is getting worse:")
    same = evidence(replies(0, 20, 50) + replies(9, 24, 50))
    assert same.verdict == "open"
    assert same.sentence.startswith("Not shown:")


def test_an_interval_that_touches_zero_claims_nothing() -> None:
    for liked in range(20, 41):
        found = evidence(replies(0, 20, 40) + replies(3, liked, 40))
        assert (found.verdict == "better") == (difference(Share(20, 40), Share(liked, 40))[0] > 0)


def test_too_few_replies() -> None:
    assert evidence([]).verdict == "unknown"
    before = evidence(replies(0, 30, 30))
    assert before.sentence.endswith("all 30 judged first replies are from before the first update.")
    assert evidence(replies(0, 0, 50) + replies(9, 9, 9)).verdict == "unknown"
    assert evidence(replies(0, 0, 50) + replies(9, 10, 10)).verdict == "better"
    assert evidence(replies(0, 0, 50) + replies(1, 10, 10)).verdict == "better", "after one update"


def test_only_judged_first_replies_count() -> None:
    others = [
        replace(TURN, is_first=False),
        replace(TURN, kind="side"),
        replace(TURN, score=None),
        replace(TURN, version=None),
        replace(TURN, version="nightly"),
        replace(TURN, state="pending"),
    ]
    assert evidence(others).windows == ()
    zero = evidence([replace(TURN, score=0)])
    assert zero.windows[0].share == Share(0, 1)


def test_windows_are_equal_numbers_of_updates() -> None:
    found = evidence([turn for version in range(25) for turn in replies(version, 1, 2)])
    assert [(window.first, window.last) for window in found.windows] == [
        *((start, start + 2) for start in range(0, 24, 3)),
        (24, 24),
    ]
    assert sum(window.share.judged for window in found.windows) == 50
    assert all(math.isclose(window.share.value, 0.5) for window in found.windows)
