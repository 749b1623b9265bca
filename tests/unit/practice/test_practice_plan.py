"""What practice decides: whose lessons, how many replies, how far from the teacher, and when it ends."""

from __future__ import annotations

import math

import pytest
import torch

from lab.testkit.ledger_records import make_turn
from openclaw.ledger.practice import Round, RoundOutcome
from openclaw.ledger.records import TopK
from openclaw.lessons.lesson import Lesson
from openclaw.practice.plan import (
    NEAR,
    REPLY_TOKENS,
    Prompt,
    Wanted,
    distance,
    emphasised,
    group_rewards,
    is_near,
    is_over,
    may_begin,
    replies_of_round,
    series_of,
    taught,
    verdict_of,
)


def lesson(
    name: str = "l",
    state: str = "active",
    liked: int = 0,
    disliked: int = 0,
    changed: float = 1.0,
    reason: str | None = None,
) -> Lesson:
    values = {
        "id": name,
        "person": "alice",
        "text": f"Wish {name}.",
        "origin": "judge",
        "state": state,
        "reason": reason,
    }
    numbers = {"created_at": 1.0, "changed_at": changed, "served_at": None, "liked": liked, "disliked": disliked}
    return Lesson(**values, **numbers, pinned=False, touched=False, replaces=None)  # type: ignore[arg-type]


def done(outcome: RoundOutcome = "drawn", kl: float | None = 1.0, at: float = 0.0) -> Round:
    return Round(series="s", outcome=outcome, kl=kl, tokens=1, at=at)


@pytest.mark.parametrize(
    ("wanted", "state", "liked", "disliked", "practised"),
    [
        ("liked", "active", 1, 1, True),
        ("liked", "active", 1, 2, False),
        ("liked", "trial", 0, 0, False),
        ("trial", "trial", 0, 0, True),
        ("trial", "trial", 0, 1, False),
        ("trial", "proposed", 0, 0, False),
        ("trial", "resting", 5, 0, False),
    ],
)
def test_a_lesson_needs_a_like_and_no_more_dislikes(
    wanted: Wanted, state: str, liked: int, disliked: int, practised: bool
) -> None:
    found = taught([lesson("a", state, liked, disliked)], wanted, len, 2048)
    assert bool(found) == practised


def test_the_teacher_reads_a_persons_lessons_together_and_a_change_begins_anew() -> None:
    both = taught([lesson("a", liked=1), lesson("b", liked=1), lesson("c")], "liked", len, 2048)
    assert [each.id for each in both] == ["a", "b"]
    assert series_of(both) == series_of(list(both))
    learned = lesson("a", "resting", 3, reason="learned")
    assert [each.id for each in taught([learned, lesson("b", liked=1)], "liked", len, 2048)] == ["a", "b"]
    assert taught([learned], "liked", len, 2048) == [], "what the weights have is not practised for itself"
    assert [each.id for each in taught(both, "liked", len, 2048, 1)] == ["b"], (
        "the teacher reads no more than a prompt has"
    )
    newer = [lesson("b", "resting", 3, reason="learned"), lesson("c", "resting", 3, reason="learned")]
    found = taught([lesson("a", liked=1), *newer], "liked", len, 2048, 2)
    assert [each.id for each in found] == ["a", "c"], (
        "newer lessons that are learned leave room for the one to practise"
    )
    assert series_of(both) != series_of(both[:1])
    assert series_of(both) != series_of([both[0], lesson("b", liked=1, changed=2.0)]), "its complaint was repeated"


def prompt(name: str, size: int, with_lessons: int | None = None) -> Prompt:
    return Prompt(make_turn(name), [1] * size, [1] * (with_lessons or size + 5))


def test_every_prompt_has_a_first_reply_before_any_has_a_second() -> None:
    prompts = [prompt(str(number), 10) for number in range(6)]
    full = replies_of_round(prompts, 10**6, 20, 2048)
    counted = [(each.turn.id, each.is_plain, count) for each, count in full]
    assert counted == [(str(number), plain, 4 if plain else 2) for plain in (True, False) for number in range(4)]
    assert all(each.student_ids == each.teacher_ids for each, _ in full[4:]), "the last ones have the lessons"
    assert [count for _, count in replies_of_round(prompts, 6 * 30, 20, 2048)] == [2, 2, 1, 1]
    assert [count for _, count in replies_of_round(prompts, 16 * 30 + 35, 20, 2048)] == [4, 4, 4, 4, 1]
    long = [prompt("a", 3000), prompt("b", 10)]
    assert [(each.turn.id, count) for each, count in replies_of_round(long, 2000, 5000, 8192)] == [("b", 1)]
    assert REPLY_TOKENS < 2000
    assert replies_of_round([prompt("a", 10, 100)], 10**6, 20, 100) == [], "the teacher's reading must fit, too"


def test_an_emphasised_teacher_raises_what_the_lessons_change_and_nothing_else() -> None:
    logs = [[math.log(each) for each in row] for row in ([0.4, 0.3, 0.2], [0.2, 0.3, 0.2])]
    taught, plain = TopK([logs[0]], [[7, 8, 9]]), TopK([logs[1]], [[7, 8, 9]])
    same = emphasised(taught, taught)
    assert same.log_probs[0] == pytest.approx(taught.log_probs[0])
    assert emphasised(taught, plain, 0.0).log_probs[0] == pytest.approx(taught.log_probs[0])
    [raised] = emphasised(taught, plain).log_probs
    odds = [math.exp(value - raised[1]) for value in raised]
    assert odds == pytest.approx([0.8 / 0.3, 1.0, 2 / 3]), "twice as likely with the lesson, so four times"
    assert math.fsum(map(math.exp, raised)) == pytest.approx(1 - 0.1 / (0.8 + 0.3 + 0.2 + 0.1)), "the rest is a share"
    missing = TopK([logs[1][1:]], [[8, 9]])
    assert emphasised(taught, missing).log_probs[0] == pytest.approx(raised), "as the least likely one"


def test_an_emphasised_teacher_raises_no_token_by_more_than_a_bound() -> None:
    taught, plain = ([[math.log(share) for share in row]] for row in ([0.5, 0.4], [0.5 / 1000, 0.4 * 1000]))
    [raised] = emphasised(TopK(taught, [[7, 8]]), TopK(plain, [[7, 8]]), 0.5).log_probs
    assert raised[0] - raised[1] == pytest.approx(math.log(0.5 / 0.4) + 2 * 0.5)


def test_a_group_rewards_what_obeys_more_than_the_others() -> None:
    assert group_rewards([True, False, False, False]) == pytest.approx([0.15, -0.05, -0.05, -0.05])
    assert sum(group_rewards([True, True, False])) == pytest.approx(0.0)
    for alike in ([True, True], [False, False], [True], []):
        assert group_rewards(alike) == [], "replies that are alike say nothing"


def test_a_reply_is_near_if_the_weights_still_think_of_it_as_they_did() -> None:
    assert is_near([-1.0, -2.0], [-1.5, -3.0])
    assert not is_near([-1.0, -2.0], [-2.0, -3.0])
    assert not is_near([-1.0, -2.0], [-3.5, -0.5]), "differences do not cancel"


def test_rounds_end_near_the_teacher_or_without_a_fall() -> None:
    assert verdict_of(NEAR / 2, [done()]) == "reached"
    assert verdict_of(NEAR / 2, [done()], measured=False) == "drawn", "one held-out prompt is too few"
    assert verdict_of(NEAR / 2, []) == "drawn"
    assert verdict_of(1.0, []) == "drawn"
    assert verdict_of(None, [done(kl=None)], measured=False) == "drawn", "nothing is held out yet"
    assert verdict_of(2.0, [done(kl=1.0)]) == "drawn"
    assert verdict_of(2.0, [done(kl=1.0), done(kl=3.0)]) == "stuck"
    assert verdict_of(0.9, [done(kl=1.0), done(kl=3.0)]) == "drawn"
    assert verdict_of(2.0, [done(kl=1.0), done(kl=0.5)]) == "drawn", "the last but one fell"
    assert verdict_of(2.0, [done(kl=1.0), done("failed", None), done(kl=3.0)]) == "stuck"
    assert is_over([done(), done("reached", at=5.0)], now=6.0)
    assert is_over([done("stuck")], now=6.0)
    assert not is_over([done(), done("failed", None)], now=6.0)
    assert not is_over([done("reached")], now=86401.0), "it is measured again every day"


def test_a_day_has_a_number_of_rounds_failures_included() -> None:
    rounds = [done(at=10.0), done("failed", None, at=20.0), done(at=30.0)]
    assert not may_begin(rounds, now=40.0, most=3)
    assert may_begin(rounds, now=40.0, most=4)
    assert may_begin(rounds, now=86400.0 + 15.0, most=3)


@pytest.mark.parametrize("k", [3, 8, 40])
def test_the_distance_is_a_kl_over_the_common_tokens_and_a_bucket(k: int) -> None:
    generator = torch.Generator().manual_seed(1)
    student, teacher = torch.randn(2, 6, 40, generator=generator, dtype=torch.float64).log_softmax(-1)
    tops = [values.topk(k) for values in (student, teacher)]
    own, their = (TopK(top.values.tolist(), top.indices.tolist()) for top in tops)
    expected = 0.0
    for p, q, mine, theirs in zip(student, teacher, own.ids, their.ids, strict=True):
        common = sorted({*mine} & {*theirs})
        inside = float((p[common].exp() * (p[common] - q[common])).sum())
        rest_p, rest_q = (max(1e-6, 1.0 - float(each[common].exp().sum())) for each in (p, q))
        expected += inside + rest_p * math.log(rest_p / rest_q)
    whole = float((student.exp() * (student - teacher)).sum())
    assert distance(own, their) == pytest.approx(expected, abs=1e-12)
    assert distance(own, their) <= whole + 1e-9
    if k == 40:
        assert distance(own, their) == pytest.approx(whole, abs=1e-6)
    assert distance(own, own) == pytest.approx(0.0, abs=1e-12)
