"""A task from a row of a data set: a question and the right answer.

A row is a JSON object with ``prompt`` (text, or messages of which the last one is the question) and ``label``; ``metadata`` may have a ``grader`` of
``exact``, ``numeric`` and ``math`` (the default), and a ``tolerance``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from agentrl.environment import Task
from agentrl.protocol import JsonObject
from agentrl.tasks.toolcall.draft import Draft, Expected, GraderName
from agentrl.tasks.toolcall.grading import check_grader, number_of
from groundwork.data_rows import json_objects
from groundwork.exceptions import ConfigError

PREFIX = "toolcall/rows"
GRADERS: tuple[GraderName, ...] = get_args(GraderName)
USABLE = ("calculator", "code_interpreter")
"""Built-in tools that need nothing of a generated task."""


def row_name(path: Path, number: int) -> str:
    """Return the name of a row's task, such as ``toolcall/rows/dapo/7``."""
    return f"{PREFIX}/{path.stem}/{number}"


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each row of a file of JSON lines with its number, from 0.

    Raises:
        ConfigError: the file cannot be read, or a line is not an object.
    """
    try:
        yield from ((number, row) for number, (_, row) in enumerate(json_objects(path)))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}; name a file of JSON lines") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}; write one JSON object per line") from error


def data_of(row: Mapping[str, Any], where: str) -> JsonObject:
    """Return what `draft_of` needs of a row.

    Raises:
        ConfigError: question, answer or grader are unusable; begins with ``where``.
    """
    more = row.get("metadata") or {}
    if not isinstance(more, Mapping):
        raise ConfigError(f"{where}: its metadata is not an object; write one, or leave it out")
    label, grader, tolerance = row.get("label"), more.get("grader", "math"), more.get("tolerance", 0.0)
    question = question_of(row.get("prompt"))
    if question is None:
        raise ConfigError(f"{where} has no prompt; give text, or messages that end with the user's")
    if is_missing(label) or not isinstance(label, str | int | float) or not str(label).strip():
        raise ConfigError(
            f"{where} has no label{'' if label is None else f' but {str(label)[:100]!r}'}; give the right answer"
        )
    if grader not in GRADERS:
        raise ConfigError(f"{where}: there is no grader {grader!r}; use {', '.join(GRADERS)}")
    if grader == "numeric" and number_of(str(label)) is None:
        raise ConfigError(f"{where}: the label {label!r} is not a number; use the grader math or exact")
    if not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
        raise ConfigError(f"{where}: the tolerance is {tolerance!r}; give a share of the answer, such as 0.001")
    return {"question": question, "answer": str(label), "grader": grader, "tolerance": tolerance}


def is_missing(value: object) -> bool:
    """Return whether a table has no value there: null, or the NaN that some programs write for it."""
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def question_of(prompt: Any) -> str | None:
    """Return the question of a prompt."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[-1], dict) and prompt[-1].get("role") == "user":
        prompt = prompt[-1].get("content")
    return prompt if isinstance(prompt, str) and prompt.strip() else None


def tasks_of(path: Path) -> list[Task]:
    """Return the tasks of a file.

    Raises:
        ConfigError: there is no row, one is unusable, or a grader's library is missing.
    """
    tasks = [Task(row_name(path, number), data_of(row, f"{path}: row {number}")) for number, row in read_rows(path)]
    if not tasks:
        raise ConfigError(f"{path} has no row; name a file with questions")
    for grader in {str(task.data["grader"]) for task in tasks}:
        check_grader(grader)  # pyright: ignore[reportArgumentType] - `data_of` has checked it
    return tasks


def draft_of(data: Mapping[str, Any], offered: Collection[str]) -> Draft:
    """Return the task of a row.

    Args:
        data: by `data_of`.
        offered: built-in tools of the configuration.
    """
    expected = Expected(data["answer"], data["grader"], float(data["tolerance"]))
    return Draft(data["question"], [name for name in USABLE if name in offered], expected)
