"""Finds elements of OSWorld's accessibility trees by XPath or CSS, with the namespaces of its three systems.

Guarantee: an expression that cannot be evaluated is an error when the rule is read. A tree is parsed without entities and
without a network. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from agentrl.tasks.gui.osworld.shapes import Shape, Text
from groundwork.exceptions import ConfigError

System = Literal["ubuntu", "windows", "macos"]
SHARED = {
    "st": "state",
    "attr": "attributes",
    "cp": "component",
    "doc": "document",
    "txt": "text",
    "val": "value",
    "act": "action",
}
OWN: dict[System, dict[str, str]] = {
    "ubuntu": {"docattr": "document/attributes"},
    "windows": {"docattr": "document/attributes", "class": "class"},
    "macos": {"role": "role"},
}

FUNCTIONS = frozenset(
    (
        *[
            "last",
            "position",
            "count",
            "id",
            "local-name",
            "namespace-uri",
            "name",
            "string",
            "concat",
            "starts-with",
            "contains",
            "substring-before",
        ],
        *[
            "substring-after",
            "substring",
            "string-length",
            "normalize-space",
            "translate",
            "boolean",
            "not",
            "true",
            "false",
            "lang",
            "number",
        ],
        *[
            "sum",
            "floor",
            "ceiling",
            "round",
            "comment",
            "text",
            "processing-instruction",
            "node",
            "and",
            "or",
            "div",
            "mod",
        ],
    )
)
"""What may stand before a bracket: the functions, node tests and operators of XPath 1.0."""
_LITERAL = re.compile(r"'[^']*'|\"[^\"]*\"")
_PREFIX = re.compile(r"([A-Za-z_][\w.-]*):(?![:\s])")
_CALL = re.compile(r"(?<![\w:.-])([A-Za-z_][\w.-]*)\s*\(")


class ElementRule(Shape):
    """An element that the tree must have; ``xpath`` wins over ``selectors``, which are alternatives in CSS."""

    xpath: Text | None = None
    selectors: Annotated[list[Text], Field(min_length=1)] | None = None
    text: str | None = None
    exact: bool = True

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.xpath is None and self.selectors is None:
            raise ValueError("write xpath or selectors")
        return self


def namespaces(system: System) -> dict[str, str]:
    """Return the namespaces of a system's trees by prefix."""
    kinds = SHARED | OWN[system]
    return {prefix: f"https://accessibility.{system}.example.org/ns/{kind}" for prefix, kind in kinds.items()}


def finder(rule: ElementRule, system: System) -> Callable[[Any], list[str]]:
    """Return a function that returns the texts of a tree's elements that fit a rule.

    Raises:
        ValueError: the rule is not XPath or CSS, uses an unknown prefix, or does not find elements.
        ConfigError: the extra ``gui`` is not installed.
    """
    try:
        from cssselect import SelectorError
        from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]
        from lxml.cssselect import CSSSelector
    except ImportError as error:
        raise ConfigError(f"check_accessibility_tree needs {error.name}; pip install {error.name}") from error
    known = namespaces(system)
    try:
        if rule.xpath is not None:
            find = etree.XPath(rule.xpath, namespaces=known)
        else:
            find = CSSSelector(", ".join(rule.selectors or []), namespaces=known)
        _check_names(find.path, known)
        nothing: Any = find(etree.Element("nothing"))
    except (etree.XPathError, SelectorError) as error:
        raise ValueError(f"{rule.xpath or rule.selectors} cannot be evaluated: {error}") from error
    if not isinstance(nothing, list):
        raise ValueError(f"{rule.xpath} finds no elements but computes a value")
    return lambda tree: [item if isinstance(item, str) else item.text or "" for item in find(tree)]


def _check_names(path: str, known: Mapping[str, str]) -> None:
    """Refuse prefixes and functions that do not exist; lxml would see them only where a tree leads there."""
    plain = _LITERAL.sub("''", path)
    for what, names, there in (("prefix", _PREFIX, known), ("function", _CALL, FUNCTIONS)):
        if unknown := [match for match in names.findall(plain) if match not in there]:
            raise ValueError(f"{path} cannot be evaluated: there is no {what} {unknown[0]!r}")


def parsed(text: str) -> Any:
    """Return the root of a tree; None if it is not XML."""
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

    parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=True)
    try:
        return etree.fromstring(text.encode(errors="replace"), parser)
    except etree.XMLSyntaxError:
        return None
