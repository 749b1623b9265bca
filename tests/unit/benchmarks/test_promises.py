"""The table of promises is valid and recorded, and a line's grade follows from what the user sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.promise_parts.attempt import Grade, Outcome, graded
from benchmarks.promise_parts.rows import Row, TableError, read_table, row_of
from benchmarks.promises import chosen, document_of, problems, recorded_grades

WRITTEN = {"id": "a", "documents": ["S0"], "promise": "p", "type": "true", "works": "yes"}
ROW = Row("a", ("S0",), "p", type="true", works=("^yes", "too$"), differs="because", line="write --other")


def outcome(name: str, grade: Grade) -> Outcome:
    return Outcome(name, grade, "", "what was seen", 0.0, "")


def test_the_table_is_valid_and_every_row_is_recorded() -> None:
    assert [row.id for row in read_table()] == list(recorded_grades()), (
        "record the table: python -m benchmarks.promises --json benchmarks/baselines/promises.json"
    )


@pytest.mark.parametrize(
    ("status", "output", "grade", "line"),
    [
        (0, "first\nyes it does\nthis too", Grade.WORKS, "yes it does"),
        (1, "yes it does\nthis too", Grade.MISSING, "this too"),
        (0, "yes it does", Grade.MISSING, "yes it does"),
        (0, "no\nthere is none; write --other\nend", Grade.DIFFERS, "there is none; write --other"),
        (2, "there is none; write --other", Grade.DIFFERS, "there is none; write --other"),
        (127, "bash: no such file\n\n", Grade.MISSING, "bash: no such file"),
        (0, "", Grade.MISSING, ""),
    ],
)
def test_the_grade_of_an_output(status: int, output: str, grade: Grade, line: str) -> None:
    assert graded(ROW, status, output) == (grade, line)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"documents": ["S9"]}, r"row a names the documents \['S9'\]; choose from S0, S1"),
        ({"tpye": "x"}, "row a has tpye, which no row has"),
        ({"read": "README.md"}, "needs either `type`, lines to type, or `read`"),
        ({"differs": "why"}, "needs both `differs`, a reason, and `line`"),
        ({"works": None}, "has neither `works` nor `differs`"),
        ({"works": "("}, r"row a: the pattern '\(' is invalid"),
    ],
)
def test_an_invalid_row_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(TableError, match=message):
        row_of({**WRITTEN, **change})


def test_two_rows_with_one_id_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(2 * "- {id: a, documents: [S0], promise: p, type: 'true', works: x}\n")
    with pytest.raises(TableError, match="several rows have the id a"):
        read_table(tmp_path / "t.yaml")


def test_missing_and_changed_rows_are_problems() -> None:
    now = [
        outcome("a", Grade.MISSING),
        outcome("b", Grade.DIFFERS),
        outcome("c", Grade.WORKS),
        outcome("d", Grade.LEFT_OUT),
    ]
    assert problems(now, {"a": "M", "b": "W", "c": "W", "d": "W"}) == [
        "a is missing: what was seen",
        "b is D, recorded: W",
    ]


def test_rows_are_chosen_by_id_or_speed() -> None:
    rows = [Row("quick", ("S0",), "p"), Row("slow", ("S0",), "p", slow=True)]
    assert chosen(rows, ["slow"], quick=True) == rows[1:]
    assert chosen(rows, [], quick=True) == rows[:1]
    with pytest.raises(ValueError, match=r"no row 'quik'; did you mean quick\?; --list shows all"):
        chosen(rows, ["quik"], quick=False)


def test_what_was_not_tried_stays_as_it_was_written() -> None:
    rows = [Row(name, ("S0",), "new words") for name in "abc"]
    before = [{"id": "b", "grade": "D", "reason": "r", "line": "l", "promise": "old words"}]
    document = document_of(rows, [outcome("a", Grade.WORKS)], before)
    assert [(row["id"], row["grade"], row["promise"]) for row in document["rows"]] == [
        ("a", "W", "new words"),
        ("b", "D", "new words"),
        ("c", "-", "new words"),
    ]
    assert document["counts"] == {"W": 1, "D": 1, "M": 0, "-": 1}
