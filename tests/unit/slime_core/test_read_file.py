"""`groundwork.data_rows.read_file`: rows, slices, and what cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from groundwork.data_rows import read_file

ROWS: list[dict[str, Any]] = [{"q": f"{number}\u2028é", "a": [number]} for number in range(7)]
bounds = st.none() | st.integers(-9, 9)


def write_jsonl(path: Path) -> None:
    lines = [json.dumps(row, ensure_ascii=False) for row in ROWS]
    path.write_text("\n" + "\n \n".join(lines), encoding="utf-8")


def write_parquet(path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=2)


@pytest.mark.parametrize(("name", "write"), [("rows.jsonl", write_jsonl), ("rows.parquet", write_parquet)])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(start=bounds, end=bounds)
def test_slices_are_those_of_a_list(
    tmp_path: Path, name: str, write: Callable[[Path], None], start: int | None, end: int | None
) -> None:
    file = tmp_path / name
    if not file.exists():
        write(file)
    written = [("" if bound is None else str(bound)) for bound in (start, end)]
    assert list(read_file(f"{file}@[{written[0]}:{written[1]}]")) == ROWS[start:end]
    assert list(read_file(str(file))) == ROWS


def test_rows_come_one_at_a_time(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": 1}\n{"a": 2}\nnothing\n')
    rows = read_file(str(file))
    assert [next(rows), next(rows)] == [{"a": 1}, {"a": 2}]
    with pytest.raises(ValueError, match=r"line 3 of rows\.jsonl: Expecting value"):
        next(rows)
    assert list(read_file(f"{file}@[:2]")) == [{"a": 1}, {"a": 2}]


def test_what_cannot_be_read_is_said_before_the_first_row(tmp_path: Path) -> None:
    for name in ("missing.jsonl", "missing.txt", "missing.jsonl@[1:2]"):
        with pytest.raises(FileNotFoundError, match="missing"):
            read_file(str(tmp_path / name))
    with pytest.raises(FileNotFoundError):
        read_file(str(tmp_path))
    for name in ("rows.txt", "rows.json", "rows"):
        (tmp_path / name).write_text("[]")
        with pytest.raises(ValueError, match=r"use a \.jsonl or \.parquet file"):
            read_file(str(tmp_path / name))


def test_a_row_is_an_object(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("[1]")
    with pytest.raises(ValueError, match=r"line 1 of rows\.jsonl: every row must be an object"):
        list(read_file(str(file)))


def test_brackets_that_are_no_slice_belong_to_the_name(tmp_path: Path) -> None:
    file = tmp_path / "rows@[a:b].jsonl"
    file.write_text('{"a": 1}')
    assert list(read_file(str(file))) == [{"a": 1}]
    assert list(read_file(f"{file}@[0:]")) == [{"a": 1}]
