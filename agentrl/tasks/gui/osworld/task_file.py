"""A task's JSON file in OSWorld's layout, read and checked before anything starts.

Guarantee: a step, getter, metric, rule or option that does not exist here is an error that names the file and the key; none
is skipped, and none waits for an episode. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl.tasks.gui.osworld.metrics import METRICS
from agentrl.tasks.gui.osworld.shapes import (
    GETTER_SHAPES,
    PASSWORD,
    PLACEHOLDERS,
    STEP_SHAPES,
    Execute,
    File,
    Shape,
    complaint,
    placeholders,
)
from groundwork.data_rows import read_json, read_text
from groundwork.exceptions import ConfigError

INFEASIBLE = "infeasible"
"""The metric of a task that cannot be done: right is to end it with the status failure."""


class UnsupportedTask(ConfigError):
    """A task's file asks for what does not exist here; ``why`` says it without the file's name and what there is."""

    def __init__(self, path: Path, why: str, known: Collection[str] = ()) -> None:
        super().__init__(f"{path}: {why}" + (f"; there are {', '.join(sorted(known))}" if known else ""))
        self.why = why


class _Unknown(ValueError):
    """A name that does not exist here."""

    def __init__(self, said: str, known: Collection[str]) -> None:
        super().__init__(said)
        self.known = known


class Step(Shape):
    """One step of a set-up."""

    type: str
    parameters: dict[str, Any] = {}


class Evaluator(Shape):
    """How the end is judged; lists belong together by their positions."""

    func: str | list[str]
    result: dict[str, Any] | list[dict[str, Any] | None] | None = None
    expected: dict[str, Any] | list[dict[str, Any] | None] | None = None
    options: dict[str, Any] | list[dict[str, Any] | None] | None = None
    postconfig: list[Step] = []
    conj: Literal["and", "or"] = "and"


class TaskFile(BaseModel):
    """One task. Other keys, such as ``source``, describe it to people."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: Annotated[str, Field(min_length=1)]
    instruction: Annotated[str, Field(min_length=1)]
    snapshot: str = ""
    config: list[Step] = []
    evaluator: Evaluator


class Check(BaseModel):
    """One metric of an evaluator with what it compares."""

    model_config = ConfigDict(frozen=True)
    metric: str
    result: dict[str, Any] | None
    expected: dict[str, Any] | None
    options: dict[str, Any]


def read_task(path: Path, *, password: bool) -> TaskFile:
    """Return a task.

    Args:
        path: of its file.
        password: whether GUI_CLIENT_PASSWORD is set.

    Raises:
        UnsupportedTask: the file is not a task, or asks for what does not exist.
    """
    try:
        task = TaskFile.model_validate(read_json(read_text(path)))
        checks = checks_of(task.evaluator)
        for where, steps in (("config", task.config), ("evaluator.postconfig", task.evaluator.postconfig)):
            for number, step in enumerate(steps):
                _check_step(f"{where}.{number}", step, password)
        for check in checks:
            if check.metric != INFEASIBLE:
                _check(check)
    except ValidationError as error:
        raise UnsupportedTask(path, complaint("task", error).removeprefix("task.")) from error
    except json.JSONDecodeError as error:
        raise UnsupportedTask(path, f"is not JSON: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UnsupportedTask(path, f"cannot be read: {error}") from error
    except _Unknown as error:
        raise UnsupportedTask(path, str(error), error.known) from error
    except ValueError as error:
        raise UnsupportedTask(path, str(error)) from error
    return task


def checks_of(evaluator: Evaluator) -> list[Check]:
    """Return the checks of an evaluator.

    Raises:
        ValueError: its lists have different lengths.
    """
    names = [evaluator.func] if isinstance(evaluator.func, str) else evaluator.func

    def each(key: str, empty: Any) -> list[Any]:
        value = getattr(evaluator, key)
        if value is None:
            return [empty] * len(names)
        many = value if isinstance(value, list) else [value]
        if len(many) != len(names):
            raise ValueError(f"evaluator.{key}: there are {len(many)} for {len(names)} func; give one each")
        return [empty if item is None or item == {} else item for item in many]

    if not names:
        raise ValueError("evaluator.func: names no metric")
    rows = zip(names, each("result", None), each("expected", None), each("options", {}), strict=True)
    return [Check(metric=name, result=got, expected=wanted, options=more) for name, got, wanted, more in rows]


def read_meta(path: Path) -> Mapping[str, list[str]]:
    """Return the ids of tasks by domain, as OSWorld's meta files have them.

    Raises:
        ConfigError: the file is no such list.
    """
    try:
        meta = read_json(read_text(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a meta file of OSWorld: {error}") from error
    if not isinstance(meta, dict) or not all(isinstance(ids, list) for ids in meta.values()):
        raise ConfigError(f'{path} is not a meta file of OSWorld; write {{"DOMAIN": ["ID", ...]}}')
    return {str(domain): [str(item) for item in ids] for domain, ids in meta.items()}


def _check_step(where: str, step: Step, password: bool) -> None:
    _known(where, "step", step.type, STEP_SHAPES)
    _shaped(f"{where}.parameters", STEP_SHAPES[step.type], step.parameters)
    for name in placeholders(step.parameters):
        if STEP_SHAPES[step.type] is not Execute:
            raise ValueError(f"{where}.parameters: {name} is replaced in the steps execute and command alone")
        if name not in PLACEHOLDERS:
            raise _Unknown(f"{where}.parameters: {name} is unknown", PLACEHOLDERS)
        if name == PASSWORD and not password:
            raise ValueError(f"{name} needs a value; set GUI_CLIENT_PASSWORD")


def _check(check: Check) -> None:
    _known("evaluator.func", "metric", check.metric, {*METRICS, INFEASIBLE})
    metric = METRICS[check.metric]
    if check.result is None:
        raise ValueError(f"evaluator.result: {check.metric} has no result to look at")
    if check.expected is None:
        raise ValueError(f"evaluator.expected: {check.metric} has nothing to compare with")
    options = _shaped("evaluator.options", metric.options, check.options)
    result = _getter("evaluator.result", check.result, {*GETTER_SHAPES} - {"rule"})
    expected = _getter("evaluator.expected", check.expected, metric.expected)
    for key, shape, several in (("result", result, False), ("expected", expected, metric.several)):
        if isinstance(shape, File) and len(shape.given) > 1 and not several:
            raise ValueError(f"evaluator.{key}.gives: {check.metric} reads one file")
    if check.expected["type"] == "rule":
        try:
            metric.fits(metric.rules(check.expected["rules"]), options)
        except ValidationError as error:
            raise ValueError(complaint("evaluator.expected.rules", error)) from error
        except ValueError as error:
            raise ValueError(f"evaluator.expected.rules: {error}") from error


def _getter(where: str, given: Mapping[str, Any], known: Collection[str]) -> Shape:
    kind = str(given.get("type"))
    _known(where, "getter", kind, known)
    if result := placeholders(given):
        raise ValueError(f"{where}: {result[0]} is replaced in the steps execute and command alone")
    return _shaped(where, GETTER_SHAPES[kind], {key: value for key, value in given.items() if key != "type"})


def _shaped(where: str, shape: type[Shape], given: Mapping[str, Any]) -> Shape:
    try:
        return shape.model_validate(given)
    except ValidationError as error:
        raise ValueError(complaint(where, error)) from error


def _known(where: str, what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise _Unknown(f"{where}: there is no {what} {name!r} for it", known)
