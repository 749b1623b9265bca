"""How OSWorld's rules compare a value of a JSON file: ``{"key": [...], "method": ..., "ref": ...}``.

Guarantee: a method or reference that cannot be compared with is an error when the rule is read; a value that cannot be
compared does not hold. Pure.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Self

from pydantic import model_validator

from agentrl.tasks.gui.osworld.shapes import Shape

Comparison = Callable[[Any], bool]
ORDER: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "le", "lt", "ge", "gt")
}
METHODS = "re, re.FLAG, eq, ne, le, lt, ge, gt, approx:THRESHOLD, range.te and its like, str_list_eq, str_set_eq"


class ValueRule(Shape):
    """What the value at a path of keys must be."""

    key: list[str | int]
    method: str
    ref: Any

    @model_validator(mode="after")
    def _known(self) -> Self:
        comparison(self.method, self.ref)
        return self

    def holds(self, value: Any) -> bool:
        """Return whether a value is as the rule says."""
        try:
            return bool(comparison(self.method, self.ref)(value))
        except TypeError:
            return False


class JsonRules(Shape):
    """Rules that must all hold, and rules of which none may hold."""

    expect: list[ValueRule] = []
    unexpect: list[ValueRule] = []

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.expect and not self.unexpect:
            raise ValueError("write expect, unexpect, or both")
        return self


def value_at(root: Any, key: Sequence[str | int]) -> Any:
    """Return the value at a path.

    Raises:
        LookupError: there is none.
    """
    value = root
    for item in key:
        if not isinstance(value, dict if isinstance(item, str) else list):
            raise LookupError(item)
        value = value[item]  # pyright: ignore[reportArgumentType, reportCallIssue] - a string has a dict, a number a list
    return value


def comparison(method: str, ref: Any) -> Comparison:
    """Return how a method compares with a reference.

    Raises:
        ValueError: there is no such method, or the reference does not fit it.
    """
    name, dot, rest = method.partition(".")
    if name == "re":
        return _matches(ref, rest.split(".") if dot else [])
    if method in ORDER:
        return lambda value: ORDER[method](value, ref)
    if method.startswith("approx:"):
        return _near(_number(ref), _number(method.removeprefix("approx:")))
    if re.fullmatch(r"range\.[te][te]", method):
        return _between(ref, ORDER["l" + method[6]], ORDER["l" + method[7]])
    if method in ("str_list_eq", "str_set_eq"):
        if not isinstance(ref, list):
            raise ValueError(f"the method {method} needs a list as ref")
        kind = list if method == "str_list_eq" else set
        return lambda value: kind(value.strip("\"'").split(",")) == kind(ref) if isinstance(value, str) else False
    raise ValueError(f"the method {method!r} is not supported; there are {METHODS}")


def _matches(ref: Any, flags: Sequence[str]) -> Comparison:
    known = re.RegexFlag.__members__
    if unknown := [flag for flag in flags if flag not in known]:
        raise ValueError(f"re has no flag {unknown[0]!r}")
    if not isinstance(ref, str):
        raise ValueError("the method re needs a pattern as ref")
    pattern = compiled(ref, reduce(operator.or_, (known[flag] for flag in flags), re.NOFLAG))
    return lambda value: isinstance(value, str) and pattern.search(value) is not None


def compiled(pattern: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """Return a compiled pattern.

    Raises:
        ValueError: it is none.
    """
    try:
        return re.compile(pattern, flags)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error


def _near(ref: float, most: float) -> Comparison:
    def near(value: Any) -> bool:
        try:
            return abs(float(value) - ref) <= most
        except (ValueError, OverflowError):
            return False

    return near


def _between(ref: Any, left: Callable[[Any, Any], Any], right: Callable[[Any, Any], Any]) -> Comparison:
    if not isinstance(ref, list) or len(ref) != 2:
        raise ValueError("the method range needs two numbers as ref")
    low, high = map(_number, ref)
    return lambda value: left(low, value) and right(value, high)


def _number(given: Any) -> float:
    try:
        return float(given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{given!r} is not a number") from error
