"""JSON schemas of tools' arguments: which are accepted, and what checks arguments.

Guarantees: a reference leads to a place within its own schema. Nothing is read from files or the network, whatever a server's schema says. A check
takes no time of the event loop: a schema or arguments that may be slow are checked by a worker process with a time limit, and those of more than
`MAX_VALUES` are refused.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from agentrl.exceptions import InvalidError
from groundwork.exceptions import ConfigError
from slime.rollout.rm_hub.workers import GraderPool, GraderTimeout

CHECK_SECONDS = 2.0
WORKERS = 2
MAX_PROBLEMS = 3
MAX_CHARACTERS = 200
"""Of a problem."""
QUICK_VALUES, MAX_VALUES = 1000, 50_000
"""Most values of a schema or of arguments: without a worker, and at all; each `OF_ONE` characters of a text count as one more."""
OF_ONE = 100
QUICK_DEPTH = 20
QUICK = frozenset(
    [
        *("type", "properties", "required", "additionalProperties", "items", "enum", "const"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
        *("minItems", "maxItems", "minProperties", "maxProperties"),
        *("title", "description", "default", "examples", "$schema"),
    ]
)
"""Keywords whose check takes a time that grows with the arguments only: no pattern, no reference, no alternative."""
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
ENDLESS = "its parameters refer to themselves without an end"


def check_schema(where: str, schema: dict[str, Any]) -> None:
    """Refuse parameters that are not a schema of an object, or that refer to something outside of themselves.

    Raises:
        ConfigError: begins with ``where``.
    """
    if problem := problem_of_schema(schema):
        raise ConfigError(f"{where}: {problem}")


async def check_foreign_schema(where: str, schema: dict[str, Any]) -> None:
    """Do the same for the schema of a server, in a worker.

    Raises:
        ConfigError: begins with ``where``.
    """
    if _counted(schema) > MAX_VALUES:
        raise ConfigError(f"{where}: its parameters have more than {MAX_VALUES} values; do without that tool")
    try:
        problem = await _pool().grade("problem_of_schema", schema=schema)
    except (GraderTimeout, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: its parameters cannot be checked: {error}; do without that tool") from error
    if problem:
        raise ConfigError(f"{where}: {problem}")


def problem_of_schema(schema: dict[str, Any]) -> str | None:
    """Return why a schema is unusable for arguments, and what to write; None if it is usable."""
    try:
        return _problem_of_schema(schema)
    except RecursionError:
        return f"{ENDLESS}, or are too deep; write a schema of fewer levels"


def _problem_of_schema(schema: dict[str, Any]) -> str | None:
    try:
        validator_for(schema, jsonschema.Draft202012Validator).check_schema(schema)
    except jsonschema.SchemaError as error:
        return f"its parameters are not a JSON schema: {error.message[:MAX_CHARACTERS]}; correct them"
    if schema and schema.get("type") != "object":
        return f'its parameters have the type {schema.get("type")!r}; write "type": "object"'
    resolver = Registry().resolver_with_root(DRAFT202012.create_resource(schema))
    for reference in _references(schema):
        try:
            if not reference.startswith("#"):
                raise Unresolvable(reference)
            resolver.lookup(reference)
        except Unresolvable:
            return f"its parameters refer to {reference!r}; write a reference to a place in them, such as #/$defs/NAME"
    return None


async def problems_of(schema: dict[str, Any], arguments: Any) -> list[str]:
    """Return what is wrong with arguments, at most `MAX_PROBLEMS` lines.

    Raises:
        InvalidError: they are too large, or cannot be checked within `CHECK_SECONDS`.
    """
    if (size := _counted(arguments)) > MAX_VALUES:
        raise InvalidError(
            f"the arguments have more than {MAX_VALUES} values; send shorter ones", code="invalid_arguments"
        )
    if size <= QUICK_VALUES and _is_quick(schema) and _counted(schema) <= QUICK_VALUES:
        return problems_of_arguments(schema, arguments)
    try:
        return await _pool().grade("problems_of_arguments", schema=schema, arguments=arguments)
    except (GraderTimeout, ValueError, RecursionError):
        raise InvalidError(
            f"the arguments cannot be checked within {CHECK_SECONDS:g} s; send shorter ones", code="invalid_arguments"
        ) from None


def problems_of_arguments(schema: dict[str, Any], arguments: Any) -> list[str]:
    """Return what is wrong with arguments, in this process."""
    kind = validator_for(schema, jsonschema.Draft202012Validator)
    problems: list[str] = []
    try:
        # The default registry would fetch what a schema refers to.
        for error in kind(schema, registry=Registry()).iter_errors(arguments):
            problems.append(_said(error))
            if len(problems) == MAX_PROBLEMS:
                break
    except Unresolvable as error:
        return [f"the tool's schema refers to {error.ref}, which it lacks"]
    except RecursionError:
        return [f"the tool cannot be called: {ENDLESS}, or the arguments are too deep"]
    return problems


@functools.cache
def _pool() -> GraderPool:
    """Return this process's workers; graders have others, so that no schema delays a grade."""
    return GraderPool(WORKERS, CHECK_SECONDS, __name__)


def _said(error: jsonschema.ValidationError) -> str:
    place = ".".join(str(part) for part in error.absolute_path)
    text = f"{place}: {error.message}" if place else error.message
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."


def _is_quick(schema: Any, depth: int = QUICK_DEPTH) -> bool:
    """Return whether a schema has only keywords of `QUICK`, at every place of it."""
    if isinstance(schema, bool):
        return True
    if not isinstance(schema, dict) or not depth or not schema.keys() <= QUICK:
        return False
    below = [*schema["properties"].values()] if isinstance(schema.get("properties"), Mapping) else []
    below += [schema[key] for key in ("items", "additionalProperties") if key in schema]
    return all(_is_quick(item, depth - 1) for item in below)


def _counted(value: Any) -> int:
    """Return how many values there are, or more than `MAX_VALUES`; more than `QUICK_VALUES` if they are nested too deep."""
    total, waiting = 0, [(value, 0)]
    while waiting and total <= MAX_VALUES:
        one, depth = waiting.pop()
        total += 1 + (QUICK_VALUES if depth == QUICK_DEPTH else 0)
        if isinstance(one, str):
            total += len(one) // OF_ONE
        elif isinstance(one, dict | list):
            if len(one) > MAX_VALUES:
                return total + len(one)
            total += sum(len(str(name)) for name in one) // OF_ONE if isinstance(one, dict) else 0
            waiting += [(item, depth + 1) for item in (one.values() if isinstance(one, dict) else one)]
    return total


def _references(schema: dict[str, Any]) -> Iterator[str]:
    """Yield the references at all places that are schemas; a ``$ref`` within a default or an enum is data."""
    below = [DRAFT202012.create_resource(schema)]
    while below:
        resource = below.pop()
        if isinstance(contents := resource.contents, dict):
            yield from (contents[key] for key in REFERENCES if isinstance(contents.get(key), str))
            older = contents.get("definitions")  # where drafts before 2019-09 have what $defs has
            below += map(DRAFT202012.create_resource, older.values()) if isinstance(older, dict) else ()
        below += resource.subresources()
