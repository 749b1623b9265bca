"""Compares what a getter read with what was expected; 1 is right, 0 is wrong, and a share stands between them.

Guarantees: a rule, option or expected source that a metric cannot use is an error when the task is read, never a score, as are
rules by which any result would be right. What the agent left missing, or unreadable, scores 0. Pure.

A value of a JSON file is compared by ``{"key": [...], "method": ..., "ref": ...}``. A value that cannot be compared does not hold.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import AfterValidator, Field, TypeAdapter, model_validator

from agentrl.tasks.gui.osworld.accessibility import ElementRule, System, finder, parsed
from agentrl.tasks.gui.osworld.shapes import Nothing, Shape

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


Elements = Annotated[list[ElementRule], Field(min_length=1)]
"""Rules of ``check_accessibility_tree``."""
MAX_COMPARED = 20_000
"""Characters that an inexact comparison reads."""
RULE, FILES = ("rule",), ("vm_file", "cloud_file")
READ = (*RULE, *FILES, "vm_command_line", "vm_command_error", "vm_terminal_output", "vm_screen_size", "list_directory")


class Expected(Shape):
    """Rules of ``exact_match`` and ``is_in_list``."""

    expected: Any


class Listed(Shape):
    """Rules of ``match_in_list``."""

    expected: Annotated[list[Any], Field(min_length=1)]


class Texts(Shape):
    """Rules of ``file_contains``."""

    expected: Annotated[list[str], Field(min_length=1)]


class Similar(Shape):
    """Rules of ``fuzzy_match``."""

    expected: str


class Parts(Shape):
    """Rules of ``check_include_exclude``."""

    include: list[str] = []
    exclude: list[str] = []

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.include and not self.exclude:
            raise ValueError("write include, exclude, or both")
        return self


class Pattern(Shape):
    """Rules of ``check_regex``."""

    pattern: Annotated[str, AfterValidator(lambda given: compiled(given).pattern)]


class Urls(Shape):
    """Rules of ``is_expected_tabs``."""

    type: Literal["url"]
    urls: list[str]


class LiteralOptions(Shape):
    """Options of ``literal_match``."""

    type: Literal["str", "list"] = "str"
    ignore_case: bool = False


class TextOptions(Shape):
    """Options of ``compare_text_file``."""

    ignore_blanks: bool = False
    ignore_case: bool = False


class CsvOptions(Shape):
    """Options of ``compare_csv``; without ``strict`` blanks around a line do not count."""

    strict: bool = True
    ignore_case: bool = False


class JsonOptions(Shape):
    """Options of ``check_json``."""

    is_yaml: bool = False


class TreeOptions(Shape):
    """Options of ``check_accessibility_tree``."""

    osname: System = "ubuntu"


def as_text(value: Any) -> str | None:
    """Return text, of bytes as UTF-8; None if there is none."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) or value is None else json.dumps(value, sort_keys=True)


def similarity(left: str, right: str) -> float:
    """Return the normalised indel similarity of two texts, as OSWorld's ``fuzz.ratio`` / 100."""
    from rapidfuzz import fuzz

    return fuzz.ratio(left[:MAX_COMPARED], right[:MAX_COMPARED]) / 100


def _plain(result: Any) -> Any:
    return as_text(result) if isinstance(result, bytes) else result


def _exact_match(result: Any, rule: Expected, options: Nothing) -> float:
    return float(_plain(result) == rule.expected)


def _literal_match(result: Any, expected: Any, options: LiteralOptions) -> float:
    got, wanted = _plain(result), _plain(expected)
    if options.type == "list" and not (isinstance(got, list) and isinstance(wanted, list)):
        return 0.0
    both = [[str(item) for item in (given if options.type == "list" else [given])] for given in (got, wanted)]
    if options.ignore_case:
        both = [[item.lower() for item in given] for given in both]
    return float(both[0] == both[1])


def _literal_fits(rule: Any, options: LiteralOptions) -> None:
    if rule is None or isinstance(rule, dict) or isinstance(rule, list) != (options.type == "list"):
        raise ValueError(f"is a {type(rule).__name__}, and options.type is {options.type!r}")


def _match_in_list(result: Any, rule: Listed, options: Nothing) -> float:
    return float(_plain(result) in rule.expected)


def _is_in_list(result: Any, rule: Expected, options: Nothing) -> float:
    held = _plain(result)
    if isinstance(held, str):
        return float(isinstance(rule.expected, str) and rule.expected in held)
    return float(isinstance(held, list | dict) and rule.expected in held)


def _include_exclude(result: Any, rule: Parts, options: Nothing) -> float:
    held = result if isinstance(result, list) else as_text(result) or ""
    return float(all(item in held for item in rule.include) and not any(item in held for item in rule.exclude))


def _regex(result: Any, rule: Pattern, options: Nothing) -> float:
    return float(compiled(rule.pattern).search(as_text(result) or "") is not None)


def _fuzzy_match(result: Any, rule: Similar, options: Nothing) -> float:
    return similarity(as_text(result) or "", rule.expected)


def _text_file(result: Any, expected: Any, options: TextOptions) -> float:
    def read(given: Any) -> str:
        text = "\n".join((as_text(given) or "").split("\r\n"))
        text = " ".join(text.split()) if options.ignore_blanks else text
        return text.lower() if options.ignore_case else text

    return float(read(result) == read(expected))


def _file_contains(result: Any, rule: Texts, options: Nothing) -> float:
    return float(all(item in (as_text(result) or "") for item in rule.expected))


def _csv(result: Any, expected: Any, options: CsvOptions) -> float:
    def lines(given: Any) -> list[str]:
        text = as_text(given) or ""
        text = text.lower() if options.ignore_case else text
        return [line if options.strict else line.strip() for line in text.splitlines()]

    several = expected if isinstance(expected, list) else [expected]
    return float(any(item is not None and lines(result) == lines(item) for item in several))


def _json(result: Any, rule: JsonRules, options: JsonOptions) -> float:
    """Judge the values at the rules' paths. Where a path leads nowhere, ``expect`` fails and ``unexpect`` sees None."""
    text = as_text(result) or ""
    try:
        found = yaml.safe_load(text) if options.is_yaml else json.loads(text)
    except (ValueError, RecursionError, yaml.YAMLError):
        return 0.0

    def reached(key: list[str | int], otherwise: bool, holds: Callable[[Any], bool]) -> bool:
        try:
            return holds(value_at(found, key))
        except LookupError:
            return otherwise

    right = all(reached(item.key, False, item.holds) for item in rule.expect)
    wrong = any(reached(item.key, item.holds(None), item.holds) for item in rule.unexpect)
    return float(right and not wrong and found is not None)


def _tree(result: Any, rules: list[ElementRule], options: TreeOptions) -> float:
    """Multiply the scores of the rules, each by its best element."""
    root = parsed(as_text(result) or "")
    score = 1.0
    for rule in rules:
        texts = [] if root is None else finder(rule, options.osname)(root)
        if rule.text is None:
            score *= bool(texts)
        elif rule.exact:
            score *= rule.text in texts
        else:
            score *= max((similarity(rule.text, text) for text in texts), default=0.0)
    return score


def _tree_fits(rules: list[ElementRule], options: TreeOptions) -> None:
    for rule in rules:
        finder(rule, options.osname)


def _tabs(result: Any, rule: Urls, options: Nothing) -> float:
    if not isinstance(result, list):
        return 0.0
    opened = [_url(str(tab.get("url", ""))) for tab in result if isinstance(tab, dict)]
    return float(len(opened) == len(rule.urls) and {*map(_url, rule.urls)} <= {*opened})


def _url(given: str) -> tuple[str, ...]:
    """Return what counts of a URL: no ``www.``, no path of ``/`` alone, and http if it names no scheme."""
    parts = urlsplit(given if "://" in given else f"http://{given}")
    path = "" if parts.path == "/" else parts.path
    return parts.scheme.lower(), parts.netloc.lower().removeprefix("www."), path, parts.query, parts.fragment


def _anything(rule: Any, options: Any) -> None:
    """Accept any rule of the type."""


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        compare: returns the score of a result, which is not None, with the rule or what was expected, and the options.
        expected: getters that may say what was expected.
        rule: type of the rules, if these are from the getter ``rule``.
        options: type of the options.
        fits: raises ValueError if rule and options do not go together.
        several: whether more than one file may be expected, of which one must fit.
    """

    compare: Callable[[Any, Any, Any], float]
    expected: tuple[str, ...]
    rule: Any = Any
    options: type[Shape] = Nothing
    fits: Callable[[Any, Any], None] = _anything
    several: bool = False

    def rules(self, given: Any) -> Any:
        """Return rules as `compare` takes them.

        Raises:
            ValidationError: they have another shape.
        """
        return TypeAdapter(self.rule).validate_python(given)

    def score(self, result: Any, expected: Any, options: Shape) -> float:
        """Return the score of a result; 0 if it, or a file that was expected in the machine, is missing."""
        return 0.0 if result is None or expected is None else self.compare(result, expected, options)


METRICS: dict[str, Metric] = {
    "exact_match": Metric(_exact_match, RULE, Expected),
    "literal_match": Metric(_literal_match, READ, options=LiteralOptions, fits=_literal_fits),
    "match_in_list": Metric(_match_in_list, RULE, Listed),
    "is_in_list": Metric(_is_in_list, RULE, Expected),
    "check_include_exclude": Metric(_include_exclude, RULE, Parts),
    "check_regex": Metric(_regex, RULE, Pattern),
    "fuzzy_match": Metric(_fuzzy_match, RULE, Similar),
    "compare_text_file": Metric(_text_file, FILES, options=TextOptions),
    "file_contains": Metric(_file_contains, RULE, Texts),
    "compare_csv": Metric(_csv, FILES, options=CsvOptions, several=True),
    "check_json": Metric(_json, RULE, JsonRules, JsonOptions),
    "check_accessibility_tree": Metric(_tree, RULE, Elements, TreeOptions, _tree_fits),
    "is_expected_tabs": Metric(_tabs, RULE, Urls),
}
