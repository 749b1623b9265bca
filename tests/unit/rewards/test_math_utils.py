"""`extract_answer` and `grade_answer_verl`, the names of other cores' reward functions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime.rollout import rm_hub
from slime.rollout.rm_hub import math_utils
from slime.rollout.rm_hub.math_utils import extract_answer, grade_answer_verl
from slime.rollout.rm_hub.workers import GraderTimeout


@pytest.mark.parametrize(
    ("passage", "answer"),
    [
        (r"so \boxed{4}", "4"),
        (r"\boxed{1} or \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\boxed{}", ""),
        (r"\boxed{2", None),
        ("4", None),
        ("", None),
    ],
)
def test_the_last_closed_box(passage: str, answer: str | None) -> None:
    assert extract_answer(passage) == answer


braces = st.recursive(
    st.text("ab1 ", max_size=3), lambda inner: st.builds("{{{}}}{}".format, inner, inner), max_leaves=5
)


@given(before=st.text("ab{}\\ ", max_size=8), content=braces, after=st.text("ab ", max_size=4))
def test_balanced_content_comes_out_whole(before: str, content: str, after: str) -> None:
    assert extract_answer(f"{before} \\boxed{{{content}}}{after}") == content.strip()


@pytest.mark.parametrize(
    ("solution", "truth", "equal"),
    [
        (r"\boxed{4}", "4", True),
        (r"\boxed{0.5}", r"\frac{1}{2}", True),
        (r"\boxed{0.5}", r"so it is \boxed{\frac12}", True),
        (r"\boxed{x+1}", "1+x", True),
        (r"\boxed{5}", "4", False),
        ("4", "4", False),
        (r"\boxed{}", "4", False),
        (r"\boxed{4}", "", False),
        (r"\boxed{4}", r"\boxed{}", False),
        (r"\boxed{text}", "text", True),
    ],
)
def test_a_boxed_answer_equals_the_truth(solution: str, truth: str, equal: bool) -> None:
    assert grade_answer_verl(solution, truth) is equal


def test_a_number_is_a_truth() -> None:
    assert grade_answer_verl(r"\boxed{4}", 4) is True  # type: ignore[arg-type]


def test_both_paths_are_one_function() -> None:
    assert rm_hub.grade_answer_verl is grade_answer_verl


def test_a_comparison_over_its_limit_is_wrong(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    class Pool:
        def grade_blocking(self, name: str, **arguments: Any) -> Any:
            raise GraderTimeout("grader equal_answers took longer than 5 s")

    monkeypatch.setattr(math_utils, "pool", Pool)
    assert grade_answer_verl(r"\boxed{4}", "4") is False
    assert "the answer counts as wrong" in caplog.text
