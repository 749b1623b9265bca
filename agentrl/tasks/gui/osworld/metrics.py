"""Compares what a getter read with what was expected; 1 is right, 0 is wrong, and a share stands between them.

A metric takes the result, what was expected (None: nothing), and the options of the task. What is missing or unreadable is
wrong, because the agent left it so. Pure.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from xml.etree import ElementTree

Metric = Callable[[Any, Any, Mapping[str, Any]], float]
MOST_COMPARED = 20_000
"""Characters that `fuzzy_match` compares."""


def as_text(value: Any) -> str | None:
    """Return text, of bytes as UTF-8; None if there is none."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) or value is None else json.dumps(value, sort_keys=True)


def _lines(value: Any, options: Mapping[str, Any]) -> list[str] | None:
    text = as_text(value)
    if text is None:
        return None
    text = text.lower() if options.get("ignore_case") else text
    lines = text.splitlines()
    return [line.strip() for line in lines if line.strip()] if options.get("ignore_blanks") else lines


def _exact_match(result: Any, expected: Any, options: Mapping[str, Any]) -> float:
    wanted = expected.get("expected") if isinstance(expected, Mapping) and "expected" in expected else expected
    if isinstance(result, str) and isinstance(wanted, str):
        return float(result.strip() == wanted.strip())
    return float(result == wanted)


def _match_in_list(result: Any, expected: Any, options: Mapping[str, Any]) -> float:
    text = as_text(result)
    return float(text is not None and text.strip() in expected["expected"])


def _is_in_list(result: Any, expected: Any, options: Mapping[str, Any]) -> float:
    return float(isinstance(result, list) and expected["expected"] in result)


def _include_exclude(result: Any, expected: Any, options: Mapping[str, Any]) -> float:
    text = as_text(result)
    if text is None:
        return 0.0
    has = all(each in text for each in expected.get("include", []))
    return float(has and not any(each in text for each in expected.get("exclude", [])))


def _regex(result: Any, expected: Any, options: Mapping[str, Any]) -> float:
    text = as_text(result)
    return float(text is not None and re.search(expected["pattern"], text) is not None)


def _fuzzy_match(result: Any, expected: Any, options: Mapping[str, Any]) -> float:
    text, wanted = as_text(result), as_text(expected.get("expected") if isinstance(expected, Mapping) else expected)
    if text is None or wanted is None:
        return 0.0
    return difflib.SequenceMatcher(None, text[:MOST_COMPARED], wanted[:MOST_COMPARED]).ratio()


def _text_file(result: Any, expected: Any, options: Mapping[str, Any]) -> float:
    got, wanted = _lines(result, options), _lines(expected, options)
    return float(got is not None and got == wanted)


def _file_contains(result: Any, expected: Any, options: Mapping[str, Any]) -> float:
    text = as_text(result)
    return float(text is not None and all(each in text for each in expected["expected"]))


def _csv(result: Any, expected: Any, options: Mapping[str, Any]) -> float:
    text, wanted = as_text(result), as_text(expected)
    if text is None or wanted is None:
        return 0.0

    def rows(each: str) -> list[list[str]]:
        return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(each)) if row]

    try:
        return float(rows(text) == rows(wanted))
    except csv.Error:
        return 0.0


def _json(result: Any, expected: Any, options: Mapping[str, Any]) -> float:
    """Compare the values at the paths of ``expected["expect"]`` (``{"key": [...], "value": ...}``), or the whole."""
    try:
        found = json.loads(as_text(result) or "")
        if not (isinstance(expected, Mapping) and "expect" in expected):
            return float(found == (json.loads(expected) if isinstance(expected, str | bytes) else expected))
        for each in expected["expect"]:
            value = found
            for key in each["key"]:
                value = value[key]
            if value != each["value"]:
                return 0.0
    except (ValueError, LookupError, TypeError):
        return 0.0
    return 1.0


def _tree(result: Any, expected: Any, options: Mapping[str, Any]) -> float:
    """Look for an element of an XML tree: ``[{"xpath": ..., "text": ...}]``, all of which must be there."""
    try:
        root = ElementTree.fromstring(as_text(result) or "")
        rules = expected if isinstance(expected, list) else [expected]
        for rule in rules:
            found = root.findall(rule["xpath"], rule.get("namespaces"))
            wanted = rule.get("text")
            if not any(wanted is None or wanted == (each.text or "").strip() for each in found):
                return 0.0
    except (ElementTree.ParseError, SyntaxError):
        return 0.0
    return 1.0


def _tabs(result: Any, expected: Any, options: Mapping[str, Any]) -> float:
    if not isinstance(result, list):
        return 0.0
    open_now = sorted(str(tab.get("url", "")).rstrip("/") for tab in result if isinstance(tab, Mapping))
    return float(open_now == sorted(str(url).rstrip("/") for url in expected["urls"]))


METRICS: dict[str, Metric] = {
    "exact_match": _exact_match,
    "literal_match": _exact_match,
    "match_in_list": _match_in_list,
    "is_in_list": _is_in_list,
    "check_include_exclude": _include_exclude,
    "check_regex": _regex,
    "fuzzy_match": _fuzzy_match,
    "compare_text_file": _text_file,
    "file_contains": _file_contains,
    "compare_csv": _csv,
    "check_json": _json,
    "check_accessibility_tree": _tree,
    "is_expected_tabs": _tabs,
}
