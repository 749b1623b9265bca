"""What one engine does with a candidate, and when that refuses it: bounds, and Fisher's test against numbers computed by hand."""

from __future__ import annotations

import math

import pytest

from openclaw.config.runtime_variables import GateVariables
from openclaw.gate.decision import MIN_TIMED, Agreement, Live, Paired, chance_of_shares, disagrees, does_worse

BOUNDS = GateVariables()


def live(count: int, *, good: bool = True, liked: bool | None = None, pace: float = 0.01) -> list[Live]:
    return [Live(good, liked, pace)] * count


@pytest.mark.parametrize(
    ("some", "others", "chance"),
    [
        ([True], [True], 1.0),
        ([False], [True], 0.5),
        ([False] * 3, [True] * 3, 1 / math.comb(6, 3)),
        # Fisher's tea: three of four guessed right, from the other side.
        ([True, False, False, False], [True, True, True, False], 17 / 70),
        ([False] * 5, [False] * 5, 1.0),
    ],
)
def test_the_chance_of_two_shares(some: list[bool], others: list[bool], chance: float) -> None:
    assert chance_of_shares(some, others) == pytest.approx(chance)


def test_engine_and_trainer_agree_within_a_bound() -> None:
    assert disagrees(Agreement(None), BOUNDS) == ([], {})
    assert disagrees(Agreement(0.02), BOUNDS) == ([], {"gate/canary_difference": 0.02})
    (refusal,), metrics = disagrees(Agreement(0.3), BOUNDS)
    assert (
        "other log probabilities than the trainer, by 0.300 nats/token, more than OPENCLAW_CANARY_DIFFERENCE=0.1"
        in refusal
    )
    assert metrics == {"gate/canary_difference": 0.3}


def test_an_engine_without_numbers_is_refused_and_trackers_get_none() -> None:
    refusals, metrics = disagrees(Agreement(math.nan), BOUNDS)
    assert (len(refusals), metrics) == (1, {})


def test_degenerate_greedy_replies_of_the_engine_alone_refuse() -> None:
    refusals, metrics = disagrees(Agreement(0.0, [Paired(True, False)] * 5), BOUNDS)
    assert refusals == ["100% of its engine's greedy replies are degenerate, of the trainer's 0%"]
    assert metrics["gate/canary_degenerate"] == 1.0
    assert disagrees(Agreement(0.0, [Paired(False, False)] * 5), BOUNDS)[0] == []
    assert disagrees(Agreement(0.0, [Paired(True, False)] * 2), BOUNDS)[0] == [], "two of two happen by chance"
    assert disagrees(Agreement(0.0, [Paired(True, False)] * 5 + [Paired(True, True)] * 16), BOUNDS)[0] == []


def test_too_few_live_replies_refuse_nothing() -> None:
    assert does_worse([], live(9), BOUNDS) == ([], {"gate/canary_turns": 0.0})
    assert does_worse(live(2, good=False, pace=9.0), [], BOUNDS)[0] == []
    assert does_worse(live(1, good=False), live(3), BOUNDS)[0] == []


def test_degenerate_live_replies_refuse() -> None:
    refusals, metrics = does_worse(live(4, good=False), live(20), BOUNDS)
    assert refusals == ["100% of 4 live replies are degenerate, of the serving version 0%"]
    assert metrics["gate/canary_live_degenerate"] == 1.0
    assert does_worse(live(4, good=False), live(20, good=False), BOUNDS)[0] == [], "both alike"
    assert does_worse(live(1, good=False) + live(9), live(200), BOUNDS)[0] == [], "a tenth is within the bound"


def test_verdicts_count_once_enough_have_arrived() -> None:
    disliked, liked = live(4, liked=False), live(8, liked=True)
    refusals, metrics = does_worse(disliked, liked, BOUNDS)
    assert refusals == ["0% of 4 judged live replies are liked, of the serving version 100%"]
    assert metrics["gate/canary_liked"] == 0.0
    assert does_worse(disliked[:3], liked, BOUNDS)[0] == []
    assert does_worse(liked, disliked, BOUNDS)[0] == []


def test_slow_replies_refuse() -> None:
    slow, usual = live(MIN_TIMED, pace=0.05), live(MIN_TIMED)
    refusals, metrics = does_worse(slow, usual, BOUNDS)
    assert refusals == ["its live replies take 5.0 times as long per token, more than OPENCLAW_CANARY_SLOWDOWN=3"]
    assert metrics["gate/canary_slowdown"] == pytest.approx(5.0)
    assert does_worse(slow[1:], usual, BOUNDS)[0] == []
    assert does_worse(usual, slow, BOUNDS)[0] == []
