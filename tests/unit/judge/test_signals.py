"""Corrections in words: what says outright that a reply is not what was meant, and what only sounds like it."""

from __future__ import annotations

import time

import pytest

from openclaw.messages.signals import MAX_CORRECTION, corrects, is_correction


@pytest.mark.parametrize(
    "text",
    [
        "I meant the second file.",
        "no, i meant tomorrow",
        "Sorry, I actually meant Paris, Texas.",
        "What I meant was the other one.",
        "That's not what I asked.",
        "It is not what I meant!",
        "I didn't ask for a list.",
        "I did not mean that.",
        "Nein, ich meinte morgen.",
        "Das meinte ich nicht.",
        "Non, je voulais dire demain.",
        "Quise decir mañana.",
        "不，我的意思是明天",
    ],
)
def test_a_correction(text: str) -> None:
    assert is_correction(text)


@pytest.mark.parametrize(
    "text",
    [
        "I meant to ask you something else: who wrote Faust?",
        "I meant well.",
        "I meant no offence.",
        "What did he mean when he said I meant it?",
        "Is this what I asked for?",
        "Thanks, that is what I meant.",
        "Meant for you.",
        "",
        "I meant " + "x" * MAX_CORRECTION,
    ],
)
def test_no_correction(text: str) -> None:
    assert not is_correction(text)


def test_only_the_user_corrects() -> None:
    assert corrects([{"role": "tool", "content": "ok"}, {"role": "user", "content": "I meant two."}])
    assert not corrects([{"role": "tool", "content": "I meant two."}])


def test_a_hostile_text_takes_no_time() -> None:
    began = time.process_time()
    for text in ("no, " * 250, "no" + " " * 998, "so das es habe " * 60):
        is_correction(text)
    assert time.process_time() - began < 0.1
