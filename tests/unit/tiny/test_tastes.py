"""Wishes of the corpus and tastes outside it: what the judge may have read, and what a reply owes to a wish."""

from __future__ import annotations

import random
import re

import pytest
from simulated_users.user import User
from word_problems.feedback import approval
from word_problems.problems import draw
from word_problems.replies import CLOSINGS, NAMES_FOR_THE_USER, Manner, draw_manner, draw_style, follows_rule, write

from lab.tiny_models.episodes import (
    HELD_CLOSINGS,
    HELD_NAMES,
    SHARES,
    JudgeCase,
    draw_wish,
    granted,
    judge_answer,
    judge_episode,
    liking,
    policy_episode,
)
from lab.tiny_models.hints import QUOTE, quote
from lab.tiny_models.tastes import TASTES, taste_named
from openclaw.judge.answers import read_vote


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


@pytest.mark.parametrize("taste", TASTES, ids=lambda taste: taste.name)
def test_nobody_in_the_corpus_speaks_like_a_person_with_a_taste(taste: User) -> None:
    rng = random.Random(1)
    corpus = [draw_wish(rng).words for _ in range(6000)]
    corpus += [liking(rng) for _ in range(2000)] + [approval(rng) for _ in range(2000)]
    said = {" ".join(words(text)) for text in corpus}
    known = {word for text in corpus for word in words(text)}
    for text in taste.complaints.phrases + taste.thanks.phrases:
        assert " ".join(words(text)) not in said
        assert set(words(text)) - known, text


def test_nobody_in_the_corpus_asks_for_a_tastes_word() -> None:
    rng = random.Random(2)
    wishes = [draw_wish(rng) for _ in range(8000)]
    assert {wish.kind for wish in wishes} == set(SHARES)
    held = {word.lower().strip("!") for word in HELD_NAMES + HELD_CLOSINGS}
    assert not held & {word for wish in wishes for word in words(wish.words)}
    asked = {wish.thing for wish in wishes if wish.kind in ("call", "end")}
    assert asked >= (set(NAMES_FOR_THE_USER) | set(CLOSINGS)) - {"", *HELD_NAMES, *HELD_CLOSINGS}
    assert len(asked) > 500, "most things are made up for the occasion"


@pytest.mark.parametrize("taste", TASTES, ids=lambda taste: taste.name)
def test_some_replies_follow_a_rule_before_anybody_asks(taste: User) -> None:
    rng = random.Random(3)
    liked = [taste.likes(write(rng, draw(rng), draw_style(rng))) for _ in range(3000)]
    assert 0.12 < sum(liked) / len(liked) < 0.3


def test_the_rules() -> None:
    rng, problem = random.Random(4), draw(random.Random(4))
    spoken = Manner("captain", "Cheers!", in_words=True)
    for style in ("plain", "full", "list"):
        text = write(rng, problem, style, spoken)
        assert [taste.name for taste in TASTES if taste.likes(text)] == ["captain", "cheers", "spelled"]
        assert follows_rule(text) == (style == "plain")
    assert [t.name for t in TASTES if t.likes(write(rng, problem, "plain", Manner("doctor", "Tada!")))] == [
        "doctor",
        "tada",
    ]
    assert not any(taste.likes(write(rng, problem, "boxed", Manner())) for taste in TASTES)
    assert taste_named("tada").name == "tada"


def test_a_person_says_what_the_taste_says() -> None:
    user = taste_named("captain")
    rng = random.Random(5)
    assert user.complain(rng) in user.complaints.phrases
    assert user.approve(rng, "What is 1 + 1?").endswith(" What is 1 + 1?")
    assert user.approve(rng, None) in user.thanks.phrases


def test_a_wish_is_granted() -> None:
    rng = random.Random(6)
    for _ in range(2000):
        wish, before = draw_wish(rng), draw_manner(rng)
        style, manner = granted(rng, wish, "boxed", before)
        text = write(rng, draw(rng), style, manner)
        if wish.kind == "plain":
            assert follows_rule(text)
        elif wish.kind == "structure":
            assert style in ("full", "list")
        elif wish.kind == "call":
            assert f" {wish.thing}" in text
        elif wish.kind == "end":
            assert text.endswith(f" {wish.thing}")
        elif wish.kind == "drop":
            assert wish.thing not in (manner.called, manner.closing)
        if wish.kind in ("call", "end"):
            assert wish.thing in wish.words
            assert style == "boxed"


def test_the_hint_repeats_what_the_user_said() -> None:
    rng = random.Random(7)
    for _ in range(500):
        said = draw_wish(rng).words
        answer = judge_answer(rng, "hint", JudgeCase("a reply", said, "user", -1))
        assert read_vote("hint", answer, 0.0).hint == quote(said) == QUOTE + said


def test_a_policy_reads_the_hints_that_the_judge_writes() -> None:
    episodes = [policy_episode(random.Random(seed)) for seed in range(1500)]
    quoted = [e for e in episodes if any(QUOTE in message["content"] for message in e.messages[:-1])]
    assert len(quoted) > 150
    judged = [judge_episode(random.Random(seed)).messages[-1]["content"] for seed in range(1500)]
    assert sum(QUOTE in answer for answer in judged) > 150
