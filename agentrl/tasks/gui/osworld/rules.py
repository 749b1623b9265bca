"""What OSWorld's tasks say to each metric, as types: the rules and the options.

Guarantee: rules by which any result would be right are an error when the task is read. Pure.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from agentrl.tasks.gui.osworld.accessibility import ElementRule, System
from agentrl.tasks.gui.osworld.shapes import Shape
from agentrl.tasks.gui.osworld.values import compiled


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


Elements = Annotated[list[ElementRule], Field(min_length=1)]
"""Rules of ``check_accessibility_tree``."""
