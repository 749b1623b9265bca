"""The generated corpus: splits stay apart, labels follow the next state, replies obey their style."""

from __future__ import annotations

import random
import re

import pytest
from word_problems import phrases
from word_problems.everyday import careless, draw_everyday
from word_problems.feedback import TOOL_ERRORS, approval, complaint
from word_problems.problems import draw, draw_short, heldout
from word_problems.replies import STYLES, follows_rule, gives_number, is_degenerate, write
from word_problems.small_talk import ABOUT_ME, HELLO, NO_IDEA, WELCOME

from lab.tiny_models.episodes import JudgeCase, judge_answer, judge_case, judge_episode, policy_episode
from openclaw.judge.answers import read_vote

TABLES = [value for value in vars(phrases).values() if isinstance(value, dict) and set(value) == {"train", "held"}]


def normal(text: str) -> str:
    return re.sub(r"[^a-z0-9 ]", "", text.lower()).strip()


def test_no_phrase_is_in_both_splits() -> None:
    assert len(TABLES) == 7
    train = {normal(text) for table in [*TABLES, TOOL_ERRORS] for text in table["train"]}
    held = {normal(text) for table in [*TABLES, TOOL_ERRORS] for text in table["held"]}
    assert train
    assert held
    assert not train & held


def test_held_feedback_uses_held_fragments_only() -> None:
    rng = random.Random(1)
    train = {normal(text) for table in TABLES for text in table["train"]}
    for _ in range(200):
        for text in (complaint(rng, "held"), approval(rng, "held")):
            assert not any(normal(part) in train for part in re.split(r"(?<=[.!?]) ", text))


def test_no_complaint_in_own_words_is_a_held_fragment() -> None:
    held = {normal(text) for table in TABLES for text in table["held"]}
    pairs = [
        (phrases.UNWANTED_FRAMES, "thing", phrases.UNWANTED),
        (phrases.TOO_FRAMES, "much", phrases.TOO),
        (phrases.WANTED_FRAMES, "thing", phrases.WANTED),
        (phrases.STRUCTURE_FRAMES, "thing", phrases.STRUCTURE),
    ]
    made = {normal(frame.format(**{name: word})) for frames, name, words in pairs for frame in frames for word in words}
    assert len(made) > 800
    assert not made & held


@pytest.mark.parametrize("style", STYLES)
def test_everyday_problems_have_right_answers_and_names(style: str) -> None:
    rng = random.Random(8)
    for _ in range(300):
        problem = draw_everyday(rng)
        assert problem.split == "train"
        assert str(problem.left) in problem.question
        assert str(problem.right) in problem.question
        text = write(rng, problem, style)
        assert gives_number(text, problem.answer)
        assert follows_rule(text) == (style == "plain")
        assert "  " not in text
        assert " ." not in text
        assert eval(problem.equation.split("=")[0]) == problem.answer >= 0
    assert draw_everyday(random.Random(1), "held").split == "held"


def test_typing_without_care_keeps_the_numbers() -> None:
    rng = random.Random(9)
    text = "Tom has 12 apples and gets 3 more. How many?"
    typed = {careless(rng, text) for _ in range(200)}
    assert text in typed
    assert "tom has 12 apples and gets 3 more. how many" in typed
    assert len(typed) > 5
    assert all(re.findall(r"\d+", each) == ["12", "3"] for each in typed)


def test_small_talk_is_answered() -> None:
    answers = {episode.messages[-1]["content"] for episode in map(policy_episode, map(random.Random, range(2000)))}
    assert set(HELLO) <= answers
    assert set(ABOUT_ME) <= answers
    assert answers & set(NO_IDEA)
    assert answers & set(WELCOME)


def test_every_problem_is_in_one_split() -> None:
    rng = random.Random(2)
    assert all(draw(rng, "train", wild=0.3).split == "train" for _ in range(200))
    held = heldout(100)
    assert {problem.split for problem in held} == {"held"}
    assert len({problem.question for problem in held}) == 100
    assert len(draw_short(rng).question) <= 250


def test_answers_are_right() -> None:
    rng = random.Random(3)
    for _ in range(300):
        problem = draw(rng)
        left, operator, right, equals, result = problem.equation.split(" ")
        assert equals == "="
        assert eval(f"{left} {operator} {right}") == int(result) == problem.answer >= 0


@pytest.mark.parametrize("style", STYLES)
def test_only_plain_replies_follow_the_rule(style: str) -> None:
    rng = random.Random(4)
    for _ in range(50):
        problem = draw(rng)
        text = write(rng, problem, style)
        assert follows_rule(text) == (style == "plain")
        assert gives_number(text, problem.answer)
        assert not is_degenerate(text, True, 20)


def test_what_is_degenerate() -> None:
    assert is_degenerate("It comes to 7.", False, 20)
    assert is_degenerate("7", True, 2)
    assert is_degenerate("no number at all in here", True, 20)


def test_judge_answers_parse_to_their_label() -> None:
    rng = random.Random(5)
    labels = set()
    for _ in range(200):
        case = judge_case(rng)
        labels.add((case.role, case.label))
        assert read_vote("prm", judge_answer(rng, "prm", case), 0.0).value == case.label
        vote = read_vote("hint", judge_answer(rng, "hint", case), 0.0)
        decision, hint = vote.value, vote.hint
        assert (decision == 1) == (hint is not None) == (case.label == -1)
    assert labels == {("user", 1), ("user", -1), ("user", 0), ("tool", 1), ("tool", -1)}


def test_judge_episodes_show_defused_replies() -> None:
    rng = random.Random(6)
    for _ in range(100):
        question = judge_episode(rng).messages[1]["content"]
        assert "\\boxed" not in question


def test_episodes_are_deterministic_and_have_all_kinds() -> None:
    first = [policy_episode(random.Random(seed)) for seed in range(300)]
    assert first == [policy_episode(random.Random(seed)) for seed in range(300)]
    assert 10 < sum(episode.thinking for episode in first) < 60
    assert 10 < sum(bool(episode.tools) for episode in first) < 60
    assert all(episode.messages[-1]["role"] == "assistant" for episode in first)


def test_a_judge_case_names_its_parts() -> None:
    case = JudgeCase("a reply", "thanks", "user", 1)
    assert judge_answer(random.Random(0), "prm", case).endswith("\\boxed{1}")
