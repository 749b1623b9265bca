"""Tables of replies per grader: equal forms, wrong, empty, garbage, hostile."""

from __future__ import annotations

import asyncio
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.evaluation import GRADER_NAMES
from slime.exceptions import SampleError
from slime.rollout.metrics import grader_problems
from slime.rollout.rm_hub import async_rm, batched_async_rm, check_samples, extraction
from slime.rollout.rm_hub.f1 import f1_score
from slime.rollout.rm_hub.math_dapo_utils import compute_score
from slime.rollout.rm_hub.registry import GRADERS, find_grader
from slime.utils.types import Sample

HOSTILE = [
    "",
    " ",
    "\\boxed{" * 20000,
    "{" * 20000 + "}" * 20000,
    "\\boxed{__import__('os').system('false')}",
    "\\boxed{[].__class__.__base__.__subclasses__()}",
    "\\boxed{" + "9" * 6000 + "}",
    "\\boxed{\\frac{1}{0}}",
    "\\boxed{}",
    "\\boxed{\x00\ud800\u202e}",
    "Answer:" * 20000,
    "Answer: " + " " * 20000 + "x",
    "answer is " * 5000,
    "</think>" * 5000,
    "\\boxed{" + "(" * 6 + "1" + ")" * 6 + "}",
]


def options(rm_type: str | None = None, **changes: Any) -> Arguments:
    return Arguments(**{"rm_type": rm_type, "rm_url": None, "custom_rm_path": None, "reward_key": None, **changes})


async def graded(rm_type: str, reply: str, label: Any = None, **metadata: Any) -> Any:
    return await async_rm(options(rm_type), Sample(index=3, response=reply, label=label, metadata=metadata))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"so \boxed{5}", "5"),
        (r"\boxed{1} then \boxed{ \frac{1}{2} }", r"\frac{1}{2}"),
        (r"\boxed{\boxed{7}}", r"\boxed{7}"),
        (r"\boxed {7} and \boxed{8", "7"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\fbox{3}", "3"),
        (r"} \boxed{4}", "4"),
        (r"\boxed 5", None),
        ("no box", None),
    ],
)
def test_the_last_closed_box(text: str, found: str | None) -> None:
    assert extraction.last_boxed(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Answer: 5", "5"),
        ("ANSWER : $5$\nbye", "5"),
        ("answer: 1\n**Answer:** 2", "2"),
        (r"Answer: \boxed{6}.", "6"),
        ("Answer:", ""),
        ("Answer:\n42", "42"),
        ("**Answer:**\n\n $42$ \nbecause", "42"),
        ("Answer:\r\n\\boxed{7}", "7"),
        ("Answer: 1\n2", "1"),
        ("Answer: 1\nAnswer:\n", ""),
        ("5", None),
    ],
)
def test_the_answer_line(text: str, found: str | None) -> None:
    assert extraction.answer_line(text) == found


EQUAL = [
    ("36", "36"),
    ("36", "36.0"),
    ("36", "36."),
    ("36", "$36$"),
    ("36", r"\frac{72}{2}"),
    ("36", r"36\text{ signatures}"),
    ("36", "+36"),
    ("36", "x=36"),
    ("1,000", "1000"),
    ("1000", "1{,}000"),
    ("70000", r"\$70,000"),
    ("0.5", r"\frac12"),
    ("0.5", "1/2"),
    (r"50\%", "0.5"),
    (r"\{1,2\}", r"\{2, 1\}"),
    ("(1,2)", "(1, 2)"),
    (r"2\sqrt{3}", r"\sqrt{12}"),
    ("x^2+2x+1", "(x+1)^2"),
    (r"\text{Sunday}", "Sunday"),
    ("A", "A"),
    ("10^{1000}", "10^{1000}"),
    (r"we get \boxed{36}", "36"),
    (36, "36"),
    (0.25, r"\frac{1}{4}"),
    (["35", "36"], "36"),
]
WRONG = [
    ("36", "35"),
    ("36", "360"),
    ("36", "-36"),
    ("36", ""),
    ("36", "?"),
    ("36", "thirty-six"),
    ("36", r"\infty"),
    ("36", r"\pi"),
    ("0.5", "0.05"),
    ("(0,1)", "[0,1]"),
    (r"\{1,2\}", r"\{1,3\}"),
    ("A", "B"),
    ("Sunday", "Monday"),
    ("3.14159", r"\pi"),
]


async def test_math_sees_equal_answers_and_no_others() -> None:
    replies = [(*pair, 1.0) for pair in EQUAL] + [(*pair, 0.0) for pair in WRONG]
    rewards = await asyncio.gather(*(graded("math", rf"So \boxed{{{answer}}}.", label) for label, answer, _ in replies))
    wrong = [(label, answer) for (label, answer, due), reward in zip(replies, rewards, strict=True) if reward != due]
    assert not wrong


async def test_math_needs_the_box_and_counts_its_absence() -> None:
    sample = Sample(response="It is 36.", label="36")
    assert await async_rm(options("math"), sample) == 0.0
    assert grader_problems([sample, Sample()]) == {"no_answer": 1}


async def test_deepscaler_looks_behind_the_thinking_only() -> None:
    assert await graded("deepscaler", r"<think>\boxed{1}</think> \boxed{2}", "2") == 1.0
    assert await graded("deepscaler", r"<think>\boxed{2}</think> done", "2") == 0.0
    assert await graded("deepscaler", r"\boxed{2}", "2") == 0.0
    assert await graded("deepscaler", r"x ###Response \boxed{2}", r"\boxed{2}") == 1.0


async def test_dapo_answers_three_numbers() -> None:
    assert await graded("dapo", "Answer: 1/2", "0.5") == {"score": 1.0, "acc": True, "pred": "1/2"}
    assert await graded("dapo", "Answer: 1/3", "0.5") == {"score": -1.0, "acc": False, "pred": "1/3"}
    assert await graded("dapo", "no idea", "0.5") == {"score": -1.0, "acc": False, "pred": "[INVALID]"}
    assert (await graded("boxed_dapo", r"\boxed{0.5}", "0.5"))["acc"] is True


def test_compute_score_with_and_without_a_box() -> None:
    assert compute_score("Answer: 34", "34") == {"score": 1.0, "acc": True, "pred": "34"}
    assert compute_score(r"\boxed{34}", "34")["pred"] == "[INVALID]"
    assert compute_score(r"\boxed{34}", "34", strict_box_verify=True)["score"] == 1.0
    assert compute_score("Answer: 34", "34", strict_box_verify=True) == {"score": -1.0, "acc": False, "pred": None}
    early = r"\boxed{34}" + " " * 400
    paused = [10, 200, 300, 400]
    assert compute_score(early, "34", strict_box_verify=True, pause_tokens_index=paused)["pred"] is None
    assert compute_score(early + r"\boxed{34}", "34", True, paused)["acc"] is True


@pytest.mark.parametrize(
    ("reply", "label", "score"),
    [
        ("The Eiffel Tower!", "eiffel tower", 1.0),
        ("a b c", "b c d e", 4 / 6),
        ("nothing of it", "eiffel", 0.0),
        ("", "eiffel", 0.0),
        ("no way", "no", 0.0),
        ("No.", "no", 1.0),
        ("x x x", "x", 0.5),
    ],
)
def test_f1(reply: str, label: str, score: float) -> None:
    assert f1_score(reply, label) == pytest.approx(score)


async def test_f1_takes_the_nearest_of_several_labels() -> None:
    assert await graded("f1", "Paris, France", ["London", "Paris"]) == pytest.approx(2 / 3)
    assert await graded("boxed_f1", r"I think \boxed{Paris}", "Paris") == 1.0


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("C", 1),
        ("(C)", 1),
        ("c.", 1),
        ("The answer is (C).", 1),
        ("Answer: **C**", 1),
        (r"\boxed{C}", 1),
        (r"\boxed{\text{C}}", 1),
        ("A or B?\nAnswer: C) 12 eV", 1),
        ("<think>The answer is B</think>The answer is C", 1),
        ("12 eV", 1),
        ("C) 12 eV", 1),
        ("The answer is B, no: the answer is C", 1),
        ("Answer: I believe it is (C).", 1),
        ("Answer: A careful look leads to (C)", 1),
        ("The answer is B... no. Answer: I'd say it must be (**C**)", 1),
        ("The answer is C, not (A).", 1),
        ("The answer is C because (A) is too small", 1),
        ("Answer:\nC", 1),
        ("C\nAnswer: I am sure.", 1),
        ("The answer is not (C).", 0),
        ("The answer isn't (C)", 0),
        ("B is the answer. (C) is wrong.", 0),
        ("Answer: I believe it is (A).", 0),
        ("The answer is A", 0),
        ("ABCD", 0),
        ("E", 0),
        ("", 0),
        ("Certainly", 0),
        ("9 eV", 0),
    ],
)
async def test_gpqa(reply: str, reward: int) -> None:
    assert await graded("gpqa", reply, "C", choices=["3 eV", "6 eV", "12 eV", "9 eV"]) == reward


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("Answer: I believe it is (C).", 0),
        ("Answer: I", 1),
        ("The answer is (I).", 1),
        ("The answer is I because it is larger", 1),
        ("Answer: I would rather not say", 0),
        ("Answer: I'm not sure", 0),
    ],
)
async def test_gpqa_with_nine_choices_knows_the_pronoun(reply: str, reward: int) -> None:
    assert await graded("gpqa", reply, "I", valid_letters=list("ABCDEFGHI")) == reward


async def test_gpqa_reads_the_right_letter_where_it_is() -> None:
    assert await graded("gpqa", "E", None, correct_letter="e", valid_letters=list("ABCDE")) == 1
    assert await graded("gpqa", "B", "six", choices={"A": "three", "B": "six"}) == 1
    with pytest.raises(SampleError, match="none of the choices A, B, C, D"):
        await graded("gpqa", "A", "Z")


async def test_random_is_zero_or_one() -> None:
    assert {await graded("random", "") for _ in range(64)} == {0.0, 1.0}


@pytest.mark.parametrize("name", ["math", "dapo", "deepscaler", "f1", "gpqa", "boxed_f1"])
async def test_hostile_replies_get_the_lowest_reward(name: str) -> None:
    grader = find_grader(name)
    for reply in HOSTILE:
        reward = await graded(name, reply, "C")
        value, lowest = (one["score"] if isinstance(one, dict) else one for one in (reward, grader.wrong))
        assert value == lowest, reply[:40]


@settings(max_examples=25)
@given(st.text(max_size=40) | st.text(alphabet="0123456789{}\\frac+-*/().,=[]x%", max_size=20))
def test_no_reply_makes_the_math_graders_raise(answer: str) -> None:
    assert compute_score(f"\\boxed{{{answer}}}", "36", strict_box_verify=True)["score"] in (1.0, -1.0)


@settings(max_examples=200)
@given(st.text(alphabet=string.printable + "\\{}éß", max_size=200))
def test_no_reply_makes_extraction_or_the_text_graders_raise(reply: str) -> None:
    for grader in GRADERS.values():
        answer = grader.extract(reply)
        assert answer is None or isinstance(answer, str)
    assert 0.0 <= f1_score(reply, "a b c") <= 1.0


def test_every_name_of_the_flag_is_a_grader() -> None:
    assert sorted(GRADERS) == list(GRADER_NAMES)


async def test_metadata_names_the_grader_of_a_sample() -> None:
    sample = Sample(response="C", label="C", metadata={"rm_type": "gpqa"})
    assert await async_rm(options("math"), sample) == 1.0


async def test_unknown_and_missing_graders_are_named() -> None:
    with pytest.raises(ConfigError, match=r"no grader 'maths'; there are dapo, deepscaler.*boxed_NAME"):
        await graded("maths", "1", "1")
    with pytest.raises(ConfigError, match=r"--rm-type NAME or --custom-rm-path"):
        await async_rm(options(), Sample())
    with pytest.raises(SampleError, match=r"sample 3 has no label.*--label-key"):
        await graded("math", "1", None)


def test_samples_are_checked_before_anything_is_generated() -> None:
    check_samples(options("math"), [Sample(label="1")])
    check_samples(options(custom_rm_path="x.y"), [Sample()])
    with pytest.raises(SampleError, match=r"row 1: .* no label"):
        check_samples(options("math"), [Sample(label="1"), Sample(label=" ")])
    with pytest.raises(ConfigError, match="no grader 'other'"):
        check_samples(options(), [Sample(metadata={"rm_type": "other"})])


async def length_reward(args: Arguments, sample: Any, **kwargs: Any) -> Any:
    if isinstance(sample, list):
        return [float(len(one.response)) for one in sample] + kwargs.get("surplus", [])
    return float(len(sample.response))


async def test_the_most_specific_reward_function_wins() -> None:
    own = f"{__name__}.length_reward"
    import sys

    sys.modules.setdefault(__name__, sys.modules[length_reward.__module__])
    samples = [
        Sample(response="abcd", custom_rm_path=own),
        Sample(response="C", label="C", metadata={"rm_type": "gpqa"}),
        Sample(response="ab", custom_rm_path=own),
    ]
    assert await batched_async_rm(options("math"), samples) == [4.0, 1.0, 2.0]
    assert await async_rm(options(custom_rm_path=own), samples[1]) == 1.0
    assert await batched_async_rm(options(custom_rm_path=own), []) == []
    with pytest.raises(ConfigError, match="returned 2 rewards for 1 samples"):
        await batched_async_rm(options(custom_rm_path=own), samples[:1], surplus=[1.0])
