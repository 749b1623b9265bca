"""Converts a model's plain-text values to JSON of the type in the tool's schema.

Guarantees: never fails; a text that does not match its type becomes a string. Pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from openclaw.gateway.parsers.json_text import read_json

TEXT = frozenset({"string"})
NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
WORDS = {"true": ("boolean", "true"), "false": ("boolean", "false"), "null": ("null", "null"), "none": ("null", "null")}
LONGEST_REFERENCE_CHAIN = 8


def parameter_types(schema: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return the JSON types of a parameter; string if the schema does not say."""
    properties = schema.get("properties")
    return (_types(properties.get(name), schema, 0) if isinstance(properties, Mapping) else frozenset()) or TEXT


def parameter_words(schema: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return the allowed texts of an enum parameter, empty for any other."""
    properties = schema.get("properties")
    stated = properties.get(name) if isinstance(properties, Mapping) else None
    values = stated.get("enum") if isinstance(stated, Mapping) else None
    return frozenset(value for value in values if isinstance(value, str)) if isinstance(values, list) else frozenset()


def typed_json(text: str, types: frozenset[str]) -> str:
    """Return the JSON text of a value.

    JSON of one of ``types`` is returned as it is, and any JSON if no string is allowed.
    """
    stripped = text.strip()
    try:
        value = read_json(stripped)
    except ValueError:
        kind, word = WORDS.get(stripped.lower(), ("", ""))
        return word if kind in types else json.dumps(text, ensure_ascii=False)
    kind = NAMES.get(type(value), "null")
    fits = kind in types or (kind == "integer" and "number" in types)
    return stripped if fits or "string" not in types else json.dumps(text, ensure_ascii=False)


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    """Return the types of a schema, empty if it names none."""
    if not isinstance(schema, Mapping) or depth > LONGEST_REFERENCE_CHAIN:
        return frozenset()
    if isinstance(reference := schema.get("$ref"), str):
        return _types(_resolve(reference, root), root, depth + 1)
    stated = schema.get("type")
    if isinstance(stated, str):
        return frozenset({stated})
    if isinstance(stated, list):
        return frozenset(kind for kind in stated if isinstance(kind, str))
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(options := schema.get(name), list):
            return frozenset().union(*(_types(option, root, depth + 1) for option in options))
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    return frozenset(NAMES.get(type(value), "null") for value in values)


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    """Return the target of a reference within the schema, or None."""
    target: Any = root if reference.startswith("#") else None
    for part in reference.removeprefix("#").strip("/").split("/"):
        if part:
            target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
    return target
