"""A task's JSON file in OSWorld's layout, read and checked before anything starts.

Guarantee: a step, getter or metric that does not exist here is an error that names the file and it; none is skipped. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl.exceptions import ConfigError

INFEASIBLE = "infeasible"
"""The metric of a task that cannot be done: right is to end it with the status failure."""


class _Read(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Step(_Read):
    """One step of a set-up."""

    type: str
    parameters: dict[str, Any] = {}


class Evaluator(_Read):
    """How the end is judged; lists belong together by their positions."""

    func: str | list[str]
    result: dict[str, Any] | list[dict[str, Any] | None] | None = None
    expected: dict[str, Any] | list[dict[str, Any] | None] | None = None
    options: dict[str, Any] | list[dict[str, Any]] | None = None
    postconfig: list[Step] = []
    conj: Literal["and", "or"] = "and"


class TaskFile(_Read):
    """One task."""

    id: Annotated[str, Field(min_length=1)]
    instruction: Annotated[str, Field(min_length=1)]
    snapshot: str = ""
    config: list[Step] = []
    related_apps: list[str] = []
    evaluator: Evaluator


class Check(BaseModel):
    """One metric of an evaluator with what it compares."""

    model_config = ConfigDict(frozen=True)
    metric: str
    result: dict[str, Any] | None
    expected: dict[str, Any] | None
    options: dict[str, Any]


def read_task(path: Path, steps: Collection[str], getters: Collection[str], metrics: Collection[str]) -> TaskFile:
    """Return a task; the other arguments are what exists.

    Raises:
        ConfigError: the file is no task, or asks for what does not exist.
    """
    try:
        task = TaskFile.model_validate(json.loads(path.read_text()))
        wanted = checks_of(task.evaluator)
    except (OSError, ValueError, ValidationError) as error:
        raise ConfigError(f"{path} is no task in OSWorld's layout: {error}") from error
    for step in (*task.config, *task.evaluator.postconfig):
        _known(path, "step", step.type, steps)
    for check in wanted:
        _known(path, "metric", check.metric, {*metrics, INFEASIBLE})
        for getter in filter(None, (check.result, check.expected)):
            _known(path, "getter", str(getter.get("type")), getters)
        if check.metric != INFEASIBLE and check.result is None:
            raise ConfigError(f"{path}: the metric {check.metric} has no result to look at; add evaluator.result")
    return task


def checks_of(evaluator: Evaluator) -> list[Check]:
    """Return the checks of an evaluator.

    Raises:
        ValueError: its lists have different lengths.
    """
    names = [evaluator.func] if isinstance(evaluator.func, str) else evaluator.func

    def each(value: Any, empty: Any) -> list[Any]:
        if value is None:
            return [empty] * len(names)
        many = value if isinstance(value, list) else [value]
        if len(many) != len(names):
            raise ValueError(f"evaluator has {len(names)} func and {len(many)} of something else; give one each")
        return [empty if item is None or item == {} else item for item in many]

    rows = zip(
        names, each(evaluator.result, None), each(evaluator.expected, None), each(evaluator.options, {}), strict=True
    )
    return [Check(metric=name, result=got, expected=wanted, options=more) for name, got, wanted, more in rows]


def read_meta(path: Path) -> Mapping[str, list[str]]:
    """Return the ids of tasks by domain, as OSWorld's meta files have them.

    Raises:
        ConfigError: the file is no such list.
    """
    try:
        meta = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no meta file of OSWorld: {error}") from error
    if not isinstance(meta, dict) or not all(isinstance(ids, list) for ids in meta.values()):
        raise ConfigError(f'{path} is no meta file of OSWorld; write {{"DOMAIN": ["ID", ...]}}')
    return {str(domain): [str(each) for each in ids] for domain, ids in meta.items()}


def _known(path: Path, what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise ConfigError(f"{path}: there is no {what} {name!r} here; there are {', '.join(sorted(known))}")
