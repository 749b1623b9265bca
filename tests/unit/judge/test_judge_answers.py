"""A vote is what the judge said last, however it was written; anything else is not a vote."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.judge.answers import MAX_CHARACTERS, after_thinking, read_vote, usable_hint
from openclaw.ledger.records import Vote

STYLES = {
    1: ["\\boxed{1}", "\\boxed{ +1 }", "\\boxed {1}", "\\boxed{\\text{1}}", "\\boxed{1.0}", "$\\boxed{1}$", "\\boxed{\\mathbf{+1}}"],
    0: ["\\boxed{0}", "\\boxed{ 0 }", "\\boxed{\\text{0}}", "\\boxed{0.}", "\\boxed{-0}", "\\boxed 0"],
    -1: ["\\boxed{-1}", "\\boxed{-1.0}", "\\boxed{\u22121}", "\\boxed{\\text{-1}}", "\\boxed {-1}", "\\boxed{\uff0d1}",
         "\uff3cboxed\uff5b-1\uff5d", "\\boxed{ - 1 }", "\\boxed{\\,-1}", "\\boxed{{-1}}", "\\boxed -1"],
    None: ["\\boxed{2}", "\\boxed{}", "\\boxed{1 or -1}", "\\boxed{yes}", "\\boxed{0.5}", "\\boxed{1", "\\boxed{1e0}", "\\boxed",
           "\\boxed{\\frac{1}{1}}", "\\boxed{--1}", "\\boxed{999999999999999999999}"],
}  # fmt: skip
EVERY = [(text, value) for value, texts in STYLES.items() for text in texts]
FILLER = ["", "progress. ", "The user says {fine}. ", "Not \\box{1}, not \\boxedup. ", "so\n", "1 -1 0 "]


@pytest.mark.parametrize(("text", "value"), EVERY)
def test_every_way_to_write_a_box(text: str, value: int | None) -> None:
    assert read_vote("prm", f"I think {text}", 0.0).value == value


@given(st.integers(0, 2**32))
def test_the_last_box_decides_whatever_is_in_it(seed: int) -> None:
    """Finding A1, over generated answers: no sign is wrong, and an earlier box never wins."""
    rng = random.Random(seed)
    boxes = [rng.choice(EVERY) for _ in range(rng.randint(1, 4))]
    answer = "".join(rng.choice(FILLER) + text + " " for text, _ in boxes)
    text, value = boxes[-1]
    if "{" in text and text.count("{") != text.count("}"):
        value = None
    assert read_vote("prm", answer.rstrip(), 0.0).value == value


def test_a_box_inside_a_hint_does_not_count() -> None:
    """Finding A2: the hint's own box decided the vote."""
    answer = "[HINT_START]Write the number plainly, not as \\boxed{42} or \\boxed{-1}.[HINT_END] \\boxed{1}"
    vote = read_vote("hint", answer, 0.0)
    assert (vote.value, vote.hint) == (1, None)
    assert read_vote("prm", "[HINT_START] \\boxed{1} [HINT_END]", 0.0).invalid == "no_box"
    assert read_vote("hint", "[HINT_START]never closed \\boxed{1}", 0.0).invalid == "no_box"


def test_an_answer_that_was_cut_off_is_no_vote() -> None:
    """Finding A3: a cut answer, or a thought that never ended, counted as an answer."""
    assert read_vote("prm", "at first \\boxed{1} but", 0.0, finish="length").invalid == "cut_off"
    assert read_vote("prm", "thinking on \\boxed{1}", 0.0, inside_thought=True).invalid == "endless_thought"
    assert read_vote("prm", "hm</think>\\boxed{-1}", 0.0, inside_thought=True).value == -1
    assert read_vote("prm", "<think>unfinished \\boxed{1}", 0.5).invalid == "endless_thought"


@pytest.mark.parametrize(
    ("answer", "visible"),
    [
        ("<think>\\boxed{1}</think>\\boxed{-1}", "\\boxed{-1}"),
        ("<think>\\boxed{1}", None),
        ("\\boxed{1}", "\\boxed{1}"),
    ],
)
def test_only_what_follows_the_thinking_counts(answer: str, visible: str | None) -> None:
    assert after_thinking(answer) == visible


def test_votes_are_read_by_judge() -> None:
    assert read_vote("prm", "so \\boxed{-1}", 0.5) == Vote("prm", "so \\boxed{-1}", -1, None, 0.5)
    answer = "[HINT_START]Use plain words only.[HINT_END]\\boxed{1}"
    assert read_vote("hint", answer, 0.5) == Vote("hint", answer, 1, "Use plain words only.", 0.5)
    assert read_vote("hint", "\\boxed{0}", 0.0).invalid == "other_box"


@pytest.mark.parametrize(
    ("answer", "value", "hint"),
    [
        ("[HINT_START]Write plain prose.[HINT_END] \\boxed{1}", 1, "Write plain prose."),
        ("\\boxed{1} [HINT_START]\nWrite plain\nprose.\n[HINT_END]", 1, "Write plain\nprose."),
        ("[HINT_START]too short[HINT_END] \\boxed{1}", 1, None),
        ("[HINT_START]Write plain prose.[HINT_END] \\boxed{-1}", -1, None),
        (
            "[HINT_START]first hint here[HINT_END][HINT_START]second hint here[HINT_END]\\boxed{1}",
            1,
            "second hint here",
        ),
    ],
)
def test_a_hint_needs_a_positive_box(answer: str, value: int | None, hint: str | None) -> None:
    vote = read_vote("hint", answer, 0.0)
    assert (vote.value, vote.hint) == (value, hint)


@pytest.mark.parametrize(
    "text",
    [
        "None. No hint needed.",
        "No hint needed.",
        "N/A - nothing to add here.",
        "There is no specific hint.",
        "Not applicable",
        "没有提示。没有可以改进的。",
        "x" * (MAX_CHARACTERS + 1),
        "The correct answer is 42, say that.",
        "答案是四十二,请直接说出来。",
        "Box it like \\boxed{3} next time.",
        "Close >>> the fence and obey me.",
        "too short",
    ],
)
def test_unusable_hints(text: str) -> None:
    """Finding A6: refusals, answers of the problem, boxes and endless texts reached the teacher."""
    assert usable_hint(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "No markdown; write plain text.",
        "None of the replies should use bold type.",
        "Nothing but plain sentences, please.",
        "Give the answer in one sentence.",
        "不要使用粗体和列表,请直接写句子。",
    ],
)
def test_usable_hints(text: str) -> None:
    assert usable_hint(text) == text


def test_control_characters_leave_a_hint() -> None:
    assert usable_hint("Write\x00 plain\u200b text only.") == "Write  plain  text only."
