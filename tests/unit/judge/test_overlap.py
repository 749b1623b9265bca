"""The choice among hints is the one that counting by hand gives."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.judge.teacher import MAX_CANDIDATES, candidates, choose, overlaps
from openclaw.ledger.records import Vote
from openclaw.method import HintChoice

STUDENT = [[1, 2], [3, 4], [5, 6]]
TEACHERS = [
    [[1, 9, 2], [9, 8, 7], [5, 6, 0]],  # 1, 0, 2
    [[2, 1, 0], [4, 9, 3], [0, 9, 5]],  # 2, 1, 0
    [[1, 2, 0], [3, 9, 4], [9, 8, 7]],  # 2, 1, 0
]


def vote(hint: str | None) -> Vote:
    return Vote("hint", "", None if hint is None else 1, hint)


def test_overlap_counts_as_many_of_the_teachers_tokens_as_the_student_has() -> None:
    assert [overlaps(STUDENT, teacher) for teacher in TEACHERS] == [[1, 0, 2], [2, 1, 0], [2, 1, 0]]


def test_the_choices() -> None:
    assert choose("sequence_optimal", STUDENT, TEACHERS) == [0, 0, 0], "3 tokens each: the first of equals"
    assert choose("sequence_optimal", STUDENT, TEACHERS[::-1]) == [0, 0, 0]
    assert choose("token_optimal", STUDENT, TEACHERS) == [1, 1, 0]
    assert choose("shortest", STUDENT, TEACHERS[:1]) == [0, 0, 0]


def test_candidates_are_different_accepted_hints_the_shortest_first() -> None:
    votes = [vote("No bold at all."), vote(None), vote("No bold."), vote("No bold at all."), vote("No lists, please.")]
    assert candidates(votes, "token_optimal") == ["No bold.", "No bold at all.", "No lists, please."]
    assert candidates(votes, "shortest") == ["No bold."]
    assert candidates([vote(None)], "sequence_optimal") == []
    assert len(candidates([vote(f"hint {n}") for n in range(9)], "sequence_optimal")) == MAX_CANDIDATES


ROWS = st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3, unique=True), min_size=4, max_size=4)


@pytest.mark.parametrize("choice", get_args(HintChoice))
@given(student=ROWS, teachers=st.lists(ROWS, min_size=1, max_size=3))
def test_no_other_choice_overlaps_more(
    choice: HintChoice, student: list[list[int]], teachers: list[list[list[int]]]
) -> None:
    picks = choose(choice, student, teachers)
    table = [[len([v for v in own if v in row[:3]]) for own, row in zip(student, t, strict=True)] for t in teachers]
    found = sum(table[pick][position] for position, pick in enumerate(picks))
    if choice == "token_optimal":
        assert found == sum(max(column) for column in zip(*table, strict=True))
    else:
        assert len({*picks}) == 1
        assert found == max(map(sum, table))
