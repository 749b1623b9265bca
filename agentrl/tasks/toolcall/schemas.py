"""JSON schemas of tools' arguments: which are accepted, and what checks arguments.

Guarantee: a reference leads to a place within its own schema. Nothing is read from files or the network, whatever a server's schema says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from agentrl.exceptions import ConfigError

REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def check_schema(where: str, schema: dict[str, Any]) -> None:
    """Refuse parameters that are no schema of an object, or that refer to something outside of themselves.

    Raises:
        ConfigError: begins with ``where``.
    """
    try:
        validator_for(schema, jsonschema.Draft202012Validator).check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ConfigError(f"{where}: its parameters are no JSON schema: {error.message}; correct them") from error
    if schema and schema.get("type") != "object":
        raise ConfigError(f'{where}: its parameters have the type {schema.get("type")!r}; write "type": "object"')
    resolver = Registry().resolver_with_root(DRAFT202012.create_resource(schema))
    for reference in _references(schema):
        try:
            if not reference.startswith("#"):
                raise Unresolvable(reference)
            resolver.lookup(reference)
        except Unresolvable:
            raise ConfigError(
                f"{where}: its parameters refer to {reference!r}; write a reference to a place in them, such as #/$defs/NAME"
            ) from None


def problems_of(schema: dict[str, Any], arguments: Any) -> Iterator[jsonschema.ValidationError]:
    """Yield what is wrong with arguments."""
    kind = validator_for(schema, jsonschema.Draft202012Validator)
    # The default registry would fetch what a schema refers to.
    return kind(schema, registry=Registry()).iter_errors(arguments)


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        yield from (part[key] for key in REFERENCES if isinstance(part.get(key), str))
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _references(each)
