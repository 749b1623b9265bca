"""Tasks with answers that can be verified: what counts as right, and what the file may hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from groundwork.exceptions import ConfigError
from openclaw.gate.tasks import Task, read_tasks

ASK = [{"role": "user", "content": "2 + 3?"}]


def written(tmp_path: Path, *values: Any) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in values))
    return path


def test_the_three_kinds_of_answers(tmp_path: Path) -> None:
    text, number, pattern = read_tasks(
        written(
            tmp_path,
            {"messages": ASK, "text": "Paris"},
            "",
            {"messages": ASK, "number": 1234.5, "weight": 3},
            {"messages": ASK, "pattern": r"(?i)\bparis\b"},
        )
    )
    assert text.solved_by(" Paris\n")
    assert not text.solved_by("Paris.")
    assert number.weight == 3
    for right in ("It is 1,234.5.", "7 + 1 = 1234.5", "1.2345e3"):
        assert number.solved_by(right)
    for wrong in ("1234.5, not 7", "", "none", "1235"):
        assert not number.solved_by(wrong)
    assert pattern.solved_by("It is PARIS!")
    assert not pattern.solved_by("Parisian")


def test_a_number_has_a_sign() -> None:
    assert Task(ASK, number=-5.0).solved_by("It is -5")
    assert not Task(ASK, number=-5.0).solved_by("It is 5")
    assert Task(ASK, number=0.0).solved_by("0")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 1 is not JSON"),
        ("[]", "line 1 is not an object"),
        ({"messages": ASK}, "give one of text, number and pattern, not 0"),
        ({"messages": ASK, "text": "a", "number": 1}, "give one of text, number and pattern, not 2"),
        ({"messages": "hi", "text": "a"}, "messages is not a list of messages"),
        ({"messages": [], "text": "a"}, "messages is not a list of messages"),
        ({"messages": ASK, "txt": "a"}, "unknown field 'txt'; use messages, number, pattern, text, weight"),
        ({"messages": ASK, "number": "5"}, "number '5' is not a number; use text for words"),
        ({"messages": ASK, "number": True}, "number True is not a number"),
        ({"messages": ASK, "pattern": "("}, "pattern '(' is not a regular expression"),
        ({"messages": ASK, "text": " "}, "text ' ' is not a text"),
        ({"messages": ASK, "text": "a", "weight": 0.5}, "weight 0.5 is not a whole number from 1 to 100"),
        ({"messages": ASK, "text": "a", "weight": 101}, "weight 101 is not a whole number from 1 to 100"),
        ("", "has no task; write lines like"),
    ],
)
def test_a_bad_file_says_what_to_write(tmp_path: Path, line: Any, says: str) -> None:
    path = written(tmp_path, line)
    with pytest.raises(ConfigError) as error:
        read_tasks(path)
    assert says in str(error.value)
    assert str(error.value).startswith(f"OPENCLAW_GATE_TASKS={path}")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tasks(tmp_path / "none.jsonl")
