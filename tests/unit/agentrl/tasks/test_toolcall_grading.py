"""Answers of tool tasks: which one is read, and what it equals; and the calculator."""

from __future__ import annotations

import pytest

from agentrl.exceptions import InvalidError
from agentrl.tasks.toolcall import grading
from agentrl.tasks.toolcall.draft import Expected
from agentrl.tasks.toolcall.grading import answer_of, check_grader, is_right
from agentrl.tasks.toolcall.tools.builtin import calculate
from groundwork.exceptions import ConfigError


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        ("Answer: 5", "5"),
        ("answer:\n\n 5", "5"),
        ("**Answer:** 5", "5"),
        ("Answer: \\boxed{5}", "5"),
        ("so \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("Answer: 4\nNo: \\boxed{5}", "5"),
        ("\\boxed{4}\nNo. Answer: 5", "5"),
        ("Answer: 1\nAnswer: 2", "2"),
        ("<think>Answer: 1</think> Answer: 2", "2"),
        ("<think>Answer: 1</think> none", None),
        ("5", None),
        ("", None),
    ],
)
def test_the_last_answer_counts(message: str, answer: str | None) -> None:
    assert answer_of(message) == answer


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        *(
            (text, True)
            for text in ("1234.5", "1,234.5", "+1234.50", "12345e-1", "2469/2", " 1234.5. ", "$1234.5$", "1234.6")
        ),
        *(
            (text, False)
            for text in ("1234", "-1234.5", "1,23,4.5", "1234.5 or 3", "nan", "inf", "1e9999", "5/0", "", "9" * 600)
        ),
    ],
)
async def test_numbers(answer: str, right: bool) -> None:
    assert await is_right(answer, Expected("1234.5", "numeric", 1e-4)) is right


async def test_whole_numbers_are_exact() -> None:
    assert await is_right("10000000", Expected("10000000", "numeric"))
    assert not await is_right("10000001", Expected("10000000", "numeric"))


@pytest.mark.parametrize(
    ("answer", "right"), [("Ada", True), ("`ada`", True), (" ADA. ", True), ("Ada Ben", False), ("A da", False)]
)
async def test_text(answer: str, right: bool) -> None:
    assert await is_right(answer, Expected("Ada")) is right


async def test_expressions() -> None:
    assert await is_right("\\frac{2}{4}", Expected("1/2", "math"))
    assert not await is_right("\\frac{2}{5}", Expected("1/2", "math"))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install 'math-verify"):
        check_grader("math")
    check_grader("exact")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 * (3 + 4)", "14"),
        ("-2^3", "-8"),
        ("7 / 2", "3.5"),
        ("1/3 + 1/3 + 1/3", "1"),
        ("0.1 + 0.2", "0.3"),
        ("7 // 2 + 7 % 4", "6"),
        ("sqrt(16) + abs(-1) + max(1, 2)", "7"),
        ("round(2.567, 2)", "2.57"),
        ("2 ** 0.5", "1.41421356237"),
        ("123456789 * 987654321", "121932631112635269"),
    ],
)
def test_the_calculator(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        *("", "2 +", "a", "__import__('os')", "(1).real", "[1]", "1 if 1 else 2", "'a' * 3", "True", "abs(x=1)", "1j"),
        *(
            "1 / 0",
            "9 ** 9 ** 9",
            "(-8) ** 0.5",
            "10 ** 5000",
            "2.0 ** 99999",
            "+" * 400 + "1" * 200,
            "sqrt(-1)",
            "1; 2",
        ),
        *("(" * 240 + "1" + ")" * 240, "10**400 * 1.5 ** 0.5", "round(1, 10**300)", "0 ** -1", "max()"),
    ],
)
def test_the_calculator_refuses(expression: str) -> None:
    with pytest.raises(InvalidError):
        calculate(expression)
