"""How large a grammar the engine would build from a request's JSON schemas.

An engine compiles a schema into a grammar, and checks its whole vocabulary in each state of it. A length of a hundred is
a hundred states, and each alternative is a state. A small schema can so cost minutes and gigabytes, which other requests
wait for.

Guarantees: `check_grammar_size` refuses a schema whose estimate exceeds `GRAMMAR_SIZE`, in time linear in its characters.
It also refuses a schema that refers to itself without reading anything in between, because such a grammar accepts
nothing: the engine would find no token, and fail. Other recursion is fine. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import orjson

from openclaw.config.bounds import GRAMMAR_CHARACTERS, GRAMMAR_SIZE
from openclaw.gateway.errors import bad_request

Schema = dict[str, Any]

MOST_UNROLLED = 256
"""xgrammar counts longer repeats instead of unrolling them."""
LENGTH_WEIGHT = 4
"""Nearly every token is possible at every position of a string, which makes those states the dearest."""
STRING_LENGTHS = ("minLength", "maxLength")
ITEM_COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties")
IN_PLACE = ("allOf", "anyOf", "oneOf")
"""Keywords whose schemas describe the same value as the schema around them."""
QUANTIFIER = re.compile(r"\{(\d*)(?:,(\d*))?\}")
DEEPEST_GROUP = 32


def check_grammar_size(schemas: Sequence[tuple[str, Schema]]) -> None:
    """Refuse schemas that an engine should not compile.

    Args:
        schemas: each with the request field that holds it.

    Raises:
        ApiError: 400.
    """
    characters = size = 0
    for param, schema in schemas:
        characters += len(orjson.dumps(schema))
        if characters > GRAMMAR_CHARACTERS.most:
            raise bad_request(
                f"{param}: send schemas of at most {GRAMMAR_CHARACTERS.most} characters together",
                param=param,
                bound=GRAMMAR_CHARACTERS,
            )
        if (name := empty_reference(schema)) is not None:
            raise bad_request(
                f"{param}: {name!r} refers to itself before it describes anything; no JSON value can follow it",
                param=param,
            )
        size += grammar_size(schema)
        if size > GRAMMAR_SIZE.most:
            raise bad_request(
                f"{param}: the schema needs more than {GRAMMAR_SIZE.most} grammar rules; send shorter lengths "
                "(minLength, maxLength, patterns), fewer properties or fewer alternatives",
                param=param,
                bound=GRAMMAR_SIZE,
            )


def grammar_size(schema: Schema) -> int:
    """Return about how many rules the grammar of a schema has."""
    size = 0
    level: list[Any] = [schema]
    while level:
        value = level.pop()
        if isinstance(value, list):
            level += value
            size += sum(not isinstance(item, dict | list) for item in value)
        elif isinstance(value, dict):
            size += 1 + LENGTH_WEIGHT * _largest(value, STRING_LENGTHS) + _largest(value, ITEM_COUNTS)
            if isinstance(pattern := value.get("pattern"), str):
                size += pattern_size(pattern)
            if isinstance(patterns := value.get("patternProperties"), dict):
                size += sum(map(pattern_size, patterns))
            level += value.values()
    return size


def _largest(schema: Schema, names: Sequence[str]) -> int:
    """Return the largest number under ``names``, as far as xgrammar unrolls it."""
    numbers = [value for name in names if isinstance(value := schema.get(name), int | float)]
    return int(min(MOST_UNROLLED, max(0, *numbers))) if numbers else 0


def pattern_size(pattern: str) -> int:
    """Return about how many states a regular expression has; quantifiers multiply what they repeat."""
    groups, last = [0], 0
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "(" and len(groups) < DEEPEST_GROUP:
            groups.append(0)
            last = 0
        elif character == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif character == "{" and (found := QUANTIFIER.match(pattern, position)):
            times = max((min(MOST_UNROLLED, int(text[:9])) for text in found.groups() if text), default=1)
            groups[-1] += last * max(0, times - 1)
            last *= max(1, times)
            position = found.end()
            continue
        else:
            step = _atom_end(pattern, position)
            last = 1
            groups[-1] += 1
            position = step
            continue
        position += 1
    return sum(groups)


def _atom_end(pattern: str, position: int) -> int:
    """Return where the atom at ``position`` ends: an escape, a character class or one character."""
    if pattern[position] == "\\":
        return position + 2
    if pattern[position] == "[":
        end = position + 1
        while end < len(pattern) and (pattern[end] != "]" or end == position + 1):
            end += 2 if pattern[end] == "\\" else 1
        return end + 1
    return position + 1


def empty_reference(schema: Schema) -> str | None:
    """Return a ``$ref`` that leads back to itself through nothing but references and `IN_PLACE`, or None."""
    done: set[str] = set()
    for start in _references(schema, _everything):
        path: list[tuple[str, Iterator[str]]] = []
        on_path: set[str] = set()
        pending: str | None = start
        while pending is not None or path:
            if pending is not None:
                if pending in on_path:
                    return pending
                if pending in done:
                    pending = None
                    continue
                on_path.add(pending)
                path.append((pending, iter(_references(resolve_reference(schema, pending), _in_place))))
            name, others = path[-1]
            pending = next(others, None)
            if pending is None:
                path.pop()
                on_path.discard(name)
                done.add(name)
    return None


def _references(schema: object, inside: Callable[[Any], Iterable[Any]]) -> set[str]:
    """Return the references of a schema and of what is ``inside`` it, at any depth."""
    found: set[str] = set()
    level: list[Any] = [schema]
    while level:
        value = level.pop()
        if isinstance(value, dict) and isinstance(name := value.get("$ref"), str):
            found.add(name)
        level += inside(value)
    return found


def _everything(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _in_place(value: Any) -> Iterable[Any]:
    """Return the schemas that must be read before any character of a value."""
    lists = [value.get(keyword) for keyword in IN_PLACE] if isinstance(value, dict) else ()
    return chain.from_iterable(schemas for schemas in lists if isinstance(schemas, list))


def resolve_reference(schema: Mapping[str, Any], reference: str) -> object:
    """Return the schema that a reference within the document names, or None."""
    value: Any = schema
    if reference != "#" and not reference.startswith("#/"):
        return None
    for part in reference[1:].split("/")[1:]:
        value = value.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(value, dict) else None
    return value
