"""Refuses JSON schemas that the engine's grammar could not afford, or would not enforce.

An engine compiles a schema into a grammar, and checks its whole vocabulary in each state of it. A length of a hundred is
a hundred states, and each alternative is a state. A small schema can so cost minutes and gigabytes, which other requests
wait for. `check_grammar_size` refuses a schema whose estimate exceeds `GRAMMAR_SIZE`, in time linear in its characters,
and one that refers to itself without reading anything in between, because no JSON value can follow it.

xgrammar reads one kind of statement per schema, in the order of `FORMS`, and ignores the others without a word. Within a
type it knows some keywords, and some only alone. What it enforces is measured with the library itself
(``tests/unit/gateway/test_grammar_keywords.py``). `check_enforced` names the keyword and its place.

Guarantees: every document that the grammar of an accepted schema lets through satisfies the schema by JSON Schema 2020-12,
where `format` stands for the shape only. Annotations, data (``default``, ``enum``, ``const``, ``examples``), unknown words
and unused ``$defs`` are not read as schemas. Pure functions; no pattern of a client is ever executed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import Any, NamedTuple

import orjson

from openclaw.config.bounds import GRAMMAR_CHARACTERS, GRAMMAR_SIZE
from openclaw.gateway.errors import bad_request

Schema = Mapping[str, Any]

MAX_UNROLLED = 256
"""xgrammar counts longer repeats instead of unrolling them."""
LENGTH_WEIGHT = 4
"""Nearly every token is possible at every position of a string, which makes those states the dearest."""
STRING_LENGTHS = ("minLength", "maxLength")
ITEM_COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties")
IN_PLACE = ("allOf", "anyOf", "oneOf")
"""Keywords whose schemas describe the same value as the schema around them."""
QUANTIFIER = re.compile(r"\{(\d*)(?:,(\d*))?\}")
MAX_GROUP_DEPTH = 32


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
    return int(min(MAX_UNROLLED, max(0, *numbers))) if numbers else 0


def pattern_size(pattern: str) -> int:
    """Return about how many states a regular expression has; quantifiers multiply what they repeat."""
    groups, last = [0], 0
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "(" and len(groups) < MAX_GROUP_DEPTH:
            groups.append(0)
            last = 0
        elif character == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif character == "{" and (match := QUANTIFIER.match(pattern, position)):
            times = max((min(MAX_UNROLLED, int(text[:9])) for text in match.groups() if text), default=1)
            groups[-1] += last * max(0, times - 1)
            last *= max(1, times)
            position = match.end()
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
    references: set[str] = set()
    level: list[Any] = [schema]
    while level:
        value = level.pop()
        if isinstance(value, dict) and isinstance(name := value.get("$ref"), str):
            references.add(name)
        level += inside(value)
    return references


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


FORMS = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
"""The first of them that a schema has is all that the grammar reads of it."""
STRING = ("minLength", "maxLength", "pattern", "format")
NUMBER = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
SHAPES = {
    "object": ("properties", "additionalProperties", "unevaluatedProperties"),
    "array": ("items", "prefixItems", "unevaluatedItems"),
}
"""Keywords from which the grammar infers a missing type."""
OBJECT = (*SHAPES["object"], "patternProperties", "propertyNames", "required", "minProperties", "maxProperties")
ARRAY = (*SHAPES["array"], "minItems", "maxItems", "uniqueItems", "contains")
ASSERTIONS = (*FORMS, "type", *STRING, *NUMBER, *OBJECT, *ARRAY)

NEVER = {
    "not": "list what is allowed instead",
    "if": "use 'anyOf' with a schema for each case",
    "dependentRequired": "use 'anyOf' with a schema for each case",
    "dependentSchemas": "use 'anyOf' with a schema for each case",
    "dependencies": "use 'anyOf' with a schema for each case",
    "$dynamicRef": "use '$ref'",
    "$recursiveRef": "use '$ref'",
    "extends": "write one schema that says it all",
    "disallow": "list what is allowed instead",
    "divisibleBy": "use 'multipleOf'",
}
"""Keywords that the grammar never reads, and what to send instead."""
FORMATS = frozenset(
    {
        *("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
        *("uri", "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
    }
)
NO_FORMATS = frozenset({"idn-email", "idn-hostname", "iri", "iri-reference", "regex"})
"""Formats of JSON Schema that the grammar does not know; other names are annotations."""
MAX_FACTOR = 1024
MAX_SPAN = 10_000
"""Integers between the bounds of a ``multipleOf``; the grammar lists its multiples."""
MAX_CHOICES = 64
"""Choices of a ``oneOf``, each of which is compared with every other."""
MAX_CHOICE_DEPTH = 8
SHOWN = 100
"""Characters of a client's own words in a message."""

KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (dict,),
    "array": (list,),
}
PLAIN_KEY = re.compile(r"\$?\w+")
ESCAPED_CLASSES = frozenset("dDwWsS")
CONTROL_ESCAPE = re.compile(r"\\(?:[nrtfv0]|c.|x[01][0-9a-fA-F]|x22|x5[cC]|u00[01][0-9a-fA-F]|u0022|u005[cC])")
CODE_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})")
LOOKAROUND = re.compile(r"\(\?<?[=!]")
UNWRITTEN = '"\\'
"""Characters that need an escape in JSON, which the grammar of a pattern does not write."""


class Gap(NamedTuple):
    """A keyword that the grammar does not enforce: its place, and what to do."""

    place: str
    advice: str


class _Place(NamedTuple):
    """A schema, its path, and the type that its place gives it."""

    path: str
    schema: Any
    implied: str | None = None


def check_enforced(param: str, schema: Schema, function: str | None = None) -> None:
    """Refuse a schema that the engine's grammar would not enforce.

    Args:
        param: the request field that holds the schema.
        schema: JSON Schema of the 2020-12 draft.
        function: whose parameters it describes, if the field holds several.

    Raises:
        ApiError: 400, which names the keyword and its place.
    """
    if (gap := first_gap(schema)) is not None:
        raise bad_request(
            f"{param}{f' ({function})' if function else ''}: the engine's grammar does not enforce {gap.place}: {gap.advice}",
            param=param,
            code="unsupported_schema",
        )


def first_gap(schema: Schema) -> Gap | None:
    """Return the first keyword that the engine's grammar does not enforce, or None."""
    places, seen = [_Place("$", schema)], set[int]()
    for place in places:
        if not isinstance(place.schema, dict) or id(place.schema) in seen:
            continue
        seen.add(id(place.schema))
        gap = next(_gaps(place, schema, places), None)
        if gap is not None:
            return gap
    return None


def _gaps(place: _Place, root: Schema, places: list[_Place]) -> Iterator[Gap]:
    """Yield the gaps of one schema, and append the schemas below it to ``places``."""
    path, schema, _ = place
    for keyword, advice in NEVER.items():
        if keyword in schema:
            yield Gap(_at(path, keyword), advice)
    if "$id" in schema and schema is not root:
        yield Gap(_at(path, "$id"), "references within it would have another root; leave it out")
    form = next((name for name in FORMS if name in schema), None)
    if form is None:
        yield from _gaps_of_types(place, places)
        return
    beside = {"type"} if form in ("const", "enum") else set[str]()
    for keyword in ASSERTIONS:
        if keyword in schema and keyword != form and keyword not in beside:
            yield Gap(_at(path, keyword), f"it has no effect beside {form!r}; move it there, or leave it out")
    yield from _gaps_of_form(form, path, schema, root, places)


def _gaps_of_form(form: str, path: str, schema: Schema, root: Schema, places: list[_Place]) -> Iterator[Gap]:
    here, value = _at(path, form), schema[form]
    if form == "$ref":
        target = resolve_reference(root, value) if isinstance(value, str) else None
        if target is None:
            yield Gap(here, f"{str(value)[:SHOWN]!r} names nothing in this schema; write '#/$defs/NAME'")
        places.append(_Place(_target(str(value)), target))
    elif form in ("const", "enum"):
        values = [value] if form == "const" else value if isinstance(value, list) else []
        types = _types(schema)
        for item in values:
            if types is not None and not any(_is(item, name) for name in types):
                yield Gap(here, f"{orjson.dumps(item).decode()[:SHOWN]} is not of the 'type' beside it; leave it out")
    else:
        choices = value if isinstance(value, list) else []
        places += [_Place(f"{here}[{n}]", choice) for n, choice in enumerate(choices)]
        if form == "allOf" and len(choices) != 1:
            yield Gap(here, "only one schema in it has an effect; write one schema that says it all")
        if form == "oneOf":
            if len(choices) > MAX_CHOICES:
                yield Gap(here, f"it has more than {MAX_CHOICES} choices; use 'anyOf'")
            for (one, first), (other, second) in combinations(enumerate(choices), 2):
                if not _exclude(first, second, root):
                    yield Gap(
                        here, f"a value may fit choices {one} and {other}; let them exclude each other, or use 'anyOf'"
                    )


def _gaps_of_types(place: _Place, places: list[_Place]) -> Iterator[Gap]:
    path, schema, implied = place
    types = _types(schema)
    if implied is not None and types not in (None, {implied}):
        yield Gap(_at(path, "type"), f"a name is a {implied}; leave it out")
    if types is None:
        shape = next((name for name, keywords in SHAPES.items() if any(word in schema for word in keywords)), implied)
        if shape is None:
            for keyword in ASSERTIONS:
                if keyword in schema:
                    yield Gap(_at(path, keyword), "it has no effect without 'type'; add it")
            return
        types = {shape}
    if not types:
        yield Gap(_at(path, "type"), "name a type")
    if "string" in types:
        yield from _gaps_of_string(path, schema)
    if {"integer", "number"} & types and "multipleOf" in schema:
        yield from _gaps_of_factor(_at(path, "multipleOf"), schema, "number" in types)
    if "object" in types:
        yield from _gaps_of_object(path, schema, places)
    if "array" in types:
        for keyword in ("uniqueItems", "contains"):
            if schema.get(keyword, False) is not False:
                yield Gap(_at(path, keyword), "leave it out")
        if isinstance(first := schema.get("prefixItems"), list):
            places += [_Place(f"{_at(path, 'prefixItems')}[{n}]", item) for n, item in enumerate(first)]
        places += [_Place(_at(path, word), schema[word]) for word in ("items", "unevaluatedItems") if word in schema]


def _gaps_of_string(path: str, schema: Schema) -> Iterator[Gap]:
    if schema.get("format") in NO_FORMATS:
        yield Gap(_at(path, "format"), f"{schema['format']!r} is none that it knows; use a 'pattern'")
    rulers = ("format", "pattern") if schema.get("format") in FORMATS else ("pattern",)
    ruler = next((name for name in rulers if name in schema), None)
    if ruler is not None:
        for keyword in ("pattern", "minLength", "maxLength"):
            if keyword in schema and keyword != ruler:
                yield Gap(_at(path, keyword), f"it has no effect beside {ruler!r}; leave one of them out")
    if isinstance(pattern := schema.get("pattern"), str) and (problem := pattern_problem(pattern)):
        yield Gap(_at(path, "pattern"), problem)


def _gaps_of_factor(here: str, schema: Schema, fractions: bool) -> Iterator[Gap]:
    factor = schema["multipleOf"]
    if fractions:
        yield Gap(here, "only multiples of integers; use 'type': 'integer'")
    elif not isinstance(factor, int | float) or factor != int(factor) or factor > MAX_FACTOR:
        yield Gap(here, f"send an integer of at most {MAX_FACTOR}")
    elif factor != 1:
        low = _bound(schema, "minimum", "exclusiveMinimum", 1, max)
        high = _bound(schema, "maximum", "exclusiveMaximum", -1, min)
        if (low is None) != (high is None):
            yield Gap(here, "with one bound only; send 'minimum' and 'maximum', or neither")
        elif low is not None and high is not None and high - low >= MAX_SPAN:
            yield Gap(here, f"between bounds with more than {MAX_SPAN} integers; send closer ones, or none")


def _gaps_of_object(path: str, schema: Schema, places: list[_Place]) -> Iterator[Gap]:
    named = {name: schema[name] for name in ("properties", "patternProperties") if isinstance(schema.get(name), dict)}
    properties, patterns = named.get("properties", {}), named.get("patternProperties", {})
    for name in schema.get("required") or ():
        if name not in properties:
            yield Gap(_at(path, "required"), f"{str(name)[:SHOWN]!r} is not in 'properties'; describe it there")
    if patterns and (properties or len(patterns) > 1):
        yield Gap(_at(path, "patternProperties"), "only one pattern, without 'properties'")
    for pattern in patterns:
        if problem := pattern_problem(pattern):
            yield Gap(_at(_at(path, "patternProperties"), pattern), problem)
    if "propertyNames" in schema:
        others = [*named, *(["unevaluatedProperties"] if "unevaluatedProperties" in schema else ())]
        others += ["additionalProperties"] if schema.get("additionalProperties") is False else []
        if others:
            yield Gap(_at(path, "propertyNames"), f"it has no effect beside {others[0]!r}; leave one of them out")
    rest = schema.get("additionalProperties", schema.get("unevaluatedProperties", False))
    free = bool(patterns) or "propertyNames" in schema or rest is not False
    if isinstance(least := schema.get("minProperties"), int | float) and least > 1 and free:
        yield Gap(_at(path, "minProperties"), "names may repeat; list them in 'properties', without others")
    for keyword, schemas in named.items():
        places += [_Place(_at(_at(path, keyword), name), below) for name, below in schemas.items()]
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if keyword in schema:
            places.append(_Place(_at(path, keyword), schema[keyword]))
    if "propertyNames" in schema:
        places.append(_Place(_at(path, "propertyNames"), schema["propertyNames"], "string"))


def pattern_problem(pattern: str) -> str | None:
    """Return why the grammar does not enforce a regular expression, or None.

    The grammar matches the whole text. It ignores lookarounds and anchors within the pattern, and writes the
    characters that JSON escapes as they are.
    """
    if LOOKAROUND.search(re.sub(r"\\.", "__", pattern)):
        return "lookarounds have no effect; say what may follow instead"
    position, depth, group_class, quantified = 0, 0, None, False
    while position < len(pattern):
        character, start = pattern[position], position
        position += 1
        if character == "\\":
            escape = pattern[position : position + 1]
            raw = (
                CONTROL_ESCAPE.match(pattern, start)
                or escape in UNWRITTEN
                or (group_class is not None and escape == "b")
            )
            code = CODE_ESCAPE.match(pattern, start)
            position = code.end() if code else position + 1
            if not raw and code is None and escape.isalpha() and escape not in ESCAPED_CLASSES:
                return f"\\{escape} is none of its escapes"
        else:
            raw = character in UNWRITTEN or character < " "
        if raw and group_class != "negated":
            return "quotes, backslashes and control characters have to be escaped in JSON; leave them out"
        if group_class is not None:
            group_class = None if character == "]" else group_class
        elif character == "[":
            group_class = "negated" if pattern.startswith("^", position) else "plain"
            position += group_class == "negated"
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif character == "^" and (depth or (start and pattern[start - 1] != "|")):
            return "'^' has an effect at the beginning only"
        elif character == "$" and (depth or (position < len(pattern) and pattern[position] != "|")):
            return "'$' has an effect at the end only"
        elif quantified and character in "*+{":
            return "one quantifier follows another; use a group"
        quantified = group_class is None and character in "*+?}"
    return None


def _exclude(one: Any, other: Any, root: Schema, depth: int = 0) -> bool:
    """Return whether no value that the grammar of one schema writes fits the other, as far as that is easy to see."""
    one, other = _meant(one, root), _meant(other, root)
    if depth > MAX_CHOICE_DEPTH or not isinstance(one, dict) or not isinstance(other, dict):
        return False
    values, others = _values(one), _values(other)
    if values is not None and others is not None:
        return values.isdisjoint(others)
    kinds, other_kinds = _kinds(one), _kinds(other)
    if kinds is not None and other_kinds is not None and kinds.isdisjoint(other_kinds):
        return True
    if not all(
        result == {"object"} or (result is None and "properties" in item)
        for result, item in ((kinds, one), (other_kinds, other))
    ):
        return False
    shared = {*one.get("required", ())} & {*other.get("required", ())}
    first, second = one.get("properties", {}), other.get("properties", {})
    return any(
        name in first and name in second and _exclude(first[name], second[name], root, depth + 1)
        for name in sorted(shared)
    )


def _meant(schema: Any, root: Schema) -> Any:
    """Return the schema behind references and an ``allOf`` of one."""
    for _ in range(MAX_CHOICE_DEPTH):
        if not isinstance(schema, dict):
            break
        alone = schema.get("allOf")
        if isinstance(name := schema.get("$ref"), str):
            schema = resolve_reference(root, name)
        elif isinstance(alone, list) and len(alone) == 1 and "type" not in schema:
            schema = alone[0]
        else:
            break
    return schema


def _values(schema: Schema) -> set[bytes] | None:
    """Return the values of a ``const`` or ``enum``, as comparable bytes."""
    if "const" not in schema and not isinstance(schema.get("enum"), list):
        return None
    values = [schema["const"]] if "const" in schema else schema["enum"]
    plain = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
    return {orjson.dumps(value, option=orjson.OPT_SORT_KEYS) for value in plain}


def _kinds(schema: Schema) -> set[str] | None:
    """Return the types that a schema states or its values have; an integer is a number."""
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        types = {name for value in values for name in KINDS if _is(value, name)}
    elif (stated := _types(schema)) is None:
        return None
    else:
        types = stated
    return {"number" if name == "integer" else name for name in types}


def _types(schema: Schema) -> set[str] | None:
    """Return the stated types, or None."""
    stated = schema.get("type")
    if isinstance(stated, list):
        return {name for name in stated if isinstance(name, str)}
    return None if stated is None else {str(stated)}


def _is(value: object, name: str) -> bool:
    """Return whether a value is of a type of JSON Schema."""
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, KINDS.get(name, ()))


def _bound(
    schema: Schema, inclusive: str, exclusive: str, step: int, pick: Callable[[Iterable[float]], float]
) -> float | None:
    """Return the closest integer bound of ``minimum`` or ``maximum`` and its exclusive form, or None."""
    results = [schema[inclusive]] if isinstance(schema.get(inclusive), int | float) else []
    results += [schema[exclusive] + step] if isinstance(schema.get(exclusive), int | float) else []
    return pick(results) if results else None


def _at(path: str, key: str) -> str:
    """Return the path of what is under ``key``."""
    return f"{path}.{key}" if PLAIN_KEY.fullmatch(key) else f"{path}[{orjson.dumps(key[:SHOWN]).decode()}]"


def _target(reference: str) -> str:
    """Return the path of what a reference names."""
    path = "$"
    for part in reference.split("/")[1:]:
        path = _at(path, part)
    return path
