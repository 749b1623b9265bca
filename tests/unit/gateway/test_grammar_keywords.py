"""A schema is refused by keyword and place, or every document of its grammar satisfies it; held to xgrammar itself."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import Any

import jsonschema
import numpy
import pytest
import xgrammar

from openclaw.gateway.errors import ApiError
from openclaw.gateway.grammar_limits import first_gap
from openclaw.gateway.sampling import json_content
from openclaw.gateway.schema import parse_request

CHARACTERS = [*map(chr, range(32, 127)), "\n", "é"]
END = len(CHARACTERS)
LIKELY = frozenset('"}],:0123456789abctfn')
DOCUMENTS = 12
LONGEST = 120
INTEGER: Any = {"type": "integer"}
STRING: Any = {"type": "string"}
LETTER: Any = {"$defs": {"A": {"type": "integer", "minimum": 1, "maximum": 5}}}
OBJECTS: list[Any] = [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 2}, {"a": "x"}, {"a": 1, "b": 5}, {"a": 1, "b": 2, "c": 3}]
ARRAYS: list[Any] = [[], [1], [1, 1], [1, 2], ["a"], ["a", "a"], [1, "a"], ["a", 1], [1, 2, 3], [None], [5] * 4]
SCALARS: list[Any] = [0, 1, 2, 3, 5, 6, 10, -1, 1.5, 2.5, "", "a", "ab", "abc", "A", "S", '"', "\\", "\n", True, None]
CANDIDATES = [json.dumps(each) for each in (*OBJECTS, *ARRAYS, *SCALARS)]
BROKEN = ['"""', '"\\"', '"\n"', '{""":1}']


@cache
def compiler() -> xgrammar.GrammarCompiler:
    info = xgrammar.TokenizerInfo([*CHARACTERS, "<end>"], stop_token_ids=[END], vocab_size=END + 1)
    return xgrammar.GrammarCompiler(info, max_threads=1)


def compiled(schema: Any) -> xgrammar.CompiledGrammar:
    return compiler().compile_structural_tag(json.dumps({"type": "structural_tag", "format": json_content(schema)}))


def walk(grammar: xgrammar.CompiledGrammar, chance: random.Random) -> str | None:
    """Return a document that the grammar lets through, or None if it became too long."""
    matcher, mask, text = xgrammar.GrammarMatcher(grammar), xgrammar.allocate_token_bitmask(1, END + 1), ""
    while len(text) < LONGEST:
        matcher.fill_next_token_bitmask(mask)
        bits = numpy.unpackbits(mask[0].numpy().view(numpy.uint8), bitorder="little")
        allowed = [token for token in range(END + 1) if bits[token]]
        if END in allowed:
            return text
        likely = [token for token in allowed if CHARACTERS[token] in (LIKELY if len(text) < 40 else '"}]')]
        token = chance.choice(likely if likely and chance.random() < 0.7 else allowed)
        matcher.accept_token(token)
        text += CHARACTERS[token]
    return None


def documents(schema: Any) -> Iterator[str]:
    """Yield documents of the grammar: what it accepts of the candidates, and random ones."""
    grammar = compiled(schema)
    for text in (*CANDIDATES, *BROKEN):
        matcher = xgrammar.GrammarMatcher(grammar)
        if matcher.accept_string(text) and matcher.accept_token(END):
            yield text
    chance = random.Random(0)
    yield from (text for _ in range(DOCUMENTS) if (text := walk(grammar, chance)) is not None)


def hold(schema: Any) -> int:
    """Assert that each document satisfies the schema; return their number."""
    validator, count = jsonschema.Draft202012Validator(schema), 0
    for text in documents(schema):
        errors = [error.message for error in validator.iter_errors(json.loads(text))]
        assert not errors, (text, errors)
        count += 1
    return count


def closed(properties: Any, **more: Any) -> dict[str, Any]:
    return {
        "type": "object", "properties": properties, "required": [*properties], "additionalProperties": False, **more
    }  # fmt: skip


def text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


def tagged(name: str, value: Any) -> dict[str, Any]:
    return closed({"kind": {"const": name}, "v": value})


ENFORCED: dict[str, Any] = {
    "nothing": {},
    "types": {"type": ["integer", "null"]},
    "types with keywords": {"type": ["string", "integer"], "minLength": 2, "minimum": 3},
    "enum": {"type": ["string", "null"], "enum": ["a", None]},
    "literal": {"type": "string", "const": "a"},
    "range": {"type": "integer", "minimum": -3, "exclusiveMaximum": 3},
    "fractions": {"type": "number", "exclusiveMinimum": 0.5, "maximum": 2.25},
    "factor": {"type": "integer", "multipleOf": 3},
    "factor in a range": {"type": "integer", "multipleOf": 3, "minimum": 4, "maximum": 11},
    "lengths": {"type": "string", "minLength": 1, "maxLength": 2},
    "pattern": text("^[a-c]{1,2}$"),
    "alternatives": text("^a|b$"),
    "negated class": text('^[^"\\\\]$'),
    "range of characters": text("^[ -~]$"),
    "classes": text(r"^\d\w\S.$"),
    "format": {"type": "string", "format": "date"},
    "own format": {"type": "string", "format": "password", "maxLength": 2},
    "inferred object": {"properties": {"a": INTEGER}, "required": ["a"]},
    "inferred array": {"items": INTEGER, "minItems": 1},
    "object": closed({"a": INTEGER, "b": STRING}),
    "optional": {"type": "object", "properties": {"a": INTEGER, "b": STRING}},
    "rest": {"type": "object", "properties": {"a": STRING}, "additionalProperties": INTEGER},
    "any rest": {"type": "object", "properties": {"a": INTEGER}, "required": ["a"], "additionalProperties": True},
    "some": {"type": "object", "properties": {"a": INTEGER, "b": INTEGER, "c": INTEGER}, "minProperties": 2},
    "few": {"type": "object", "additionalProperties": INTEGER, "minProperties": 1, "maxProperties": 2},
    "pattern of names": {"type": "object", "patternProperties": {"^[a-c]$": INTEGER}},
    "names": {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": INTEGER},
    "unevaluated": {"type": "object", "properties": {"a": INTEGER}, "unevaluatedProperties": False},
    "items": {"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 2},
    "tuple": {"type": "array", "prefixItems": [INTEGER, STRING], "items": False},
    "anyOf": {"description": "x", "anyOf": [INTEGER, {"type": "null"}], "default": None},
    "allOf of one": {"allOf": [{"$ref": "#/$defs/A"}], "title": "x", **LETTER},
    "oneOf of types": {"oneOf": [INTEGER, {"type": "null"}]},
    "oneOf of tags": {"oneOf": [tagged("x", INTEGER), tagged("y", STRING)], "discriminator": {"propertyName": "kind"}},
    "oneOf of references": {
        "$defs": {"X": tagged("x", INTEGER), "Y": tagged("y", STRING)},
        "oneOf": [{"$ref": "#/$defs/X"}, {"$ref": "#/$defs/Y"}],
    },
    "reference": {"$ref": "#/$defs/A", "description": "x", **LETTER},
    "recursion": {"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": False},
    "unused definition": {**INTEGER, "$defs": {"A": {"not": {}}}},
    "annotations": {
        **INTEGER,
        **{
            "title": "x",
            "$comment": "y",
            "deprecated": True,
            "readOnly": True,
            "writeOnly": False,
            "x-own": {"not": {}},
        },
        **{"default": {"not": 1}, "examples": [{"if": 1}], "$schema": "https://json-schema.org/draft/2020-12/schema"},
    },
    "data": closed({"a": {"enum": [{"not": {}}, {"$ref": "see"}]}, "b": {"const": {"contains": 1}}}),
    "names like keywords": closed({"not": INTEGER, "if": STRING}),
    "of another type": {"type": "integer", "minLength": 3, "uniqueItems": True},
}


@pytest.mark.parametrize("schema", ENFORCED.values(), ids=ENFORCED)
def test_documents_of_an_accepted_schema_satisfy_it(schema: Any) -> None:
    assert first_gap(schema) is None
    assert hold(schema)


NOT_ONE: Any = {"not": {"const": 1}}
REFUSED: list[tuple[Any, str]] = [
    ({**INTEGER, "minimum": 1, "maximum": 2, **NOT_ONE}, "$.not"),
    ({**closed({"a": INTEGER, "b": INTEGER}), "if": {}, "then": {}}, "$.if"),
    ({"allOf": [{**INTEGER, "minimum": 1}, {**INTEGER, "maximum": 3}]}, "$.allOf"),
    ({**INTEGER, "allOf": [{"minimum": 3}]}, "$.type"),
    ({"oneOf": [{**INTEGER, "maximum": 3}, {**INTEGER, "minimum": 2}]}, "$.oneOf"),
    ({"oneOf": [INTEGER, {"type": "number"}]}, "$.oneOf"),
    ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "$.oneOf"),
    ({"oneOf": [{"const": n} for n in range(65)]}, "$.oneOf"),
    ({"oneOf": [{"type": "object", "properties": {"k": {"const": n}}} for n in range(2)]}, "$.oneOf"),
    ({"$ref": "#/$defs/A", "maximum": 2, **LETTER}, "$.maximum"),
    ({"$ref": "#/$defs/B", **LETTER}, "$.$ref"),
    ({"$ref": "other.json"}, "$.$ref"),
    ({"$defs": {"A": {"$anchor": "q", **INTEGER}}, "$ref": "#q"}, "$.$ref"),
    ({"$defs": {"A": {"$id": "http://x/", **INTEGER}}, "$ref": "#/$defs/A"}, "$.$defs.A.$id"),
    ({"$dynamicRef": "#"}, "$.$dynamicRef"),
    ({"enum": ["a", 1], "type": "string"}, "$.enum"),
    ({"enum": [1, 2, 3], "minimum": 2}, "$.minimum"),
    ({"const": "a", "pattern": "^b$"}, "$.pattern"),
    ({"const": 1, "enum": [2]}, "$.enum"),
    ({"anyOf": [INTEGER, STRING], "type": "string"}, "$.type"),
    ({"minimum": 3}, "$.minimum"),
    ({"required": ["a"]}, "$.required"),
    ({"type": []}, "$.type"),
    ({"type": "object", "required": ["a"]}, "$.required"),
    ({"type": "object", "required": ["a"], "additionalProperties": True}, "$.required"),
    ({"type": "object", "properties": {"b": INTEGER}, "required": ["a"]}, "$.required"),
    ({"type": "object", "patternProperties": {"^a$": INTEGER}, "required": ["a"]}, "$.required"),
    ({"type": "object", "patternProperties": {"^a": INTEGER, "b$": STRING}}, "$.patternProperties"),
    ({"type": "object", "properties": {"a": STRING}, "patternProperties": {"^a$": INTEGER}}, "$.patternProperties"),
    ({"type": "object", "patternProperties": {"^(?!a)b$": INTEGER}}, '$.patternProperties["^(?!a)b$"]'),
    ({"type": "object", "properties": {"abc": INTEGER}, "propertyNames": {"maxLength": 1}}, "$.propertyNames"),
    ({"type": "object", "propertyNames": {"maxLength": 1}, "additionalProperties": False}, "$.propertyNames"),
    ({"type": "object", "propertyNames": {"not": {"const": "a"}}}, "$.propertyNames.not"),
    ({"type": "object", "propertyNames": {"type": "integer"}}, "$.propertyNames.type"),
    ({"type": "object", "additionalProperties": INTEGER, "minProperties": 2}, "$.minProperties"),
    ({"type": "object", "properties": {"a": INTEGER}, "dependentRequired": {"a": ["b"]}}, "$.dependentRequired"),
    ({"type": "object", "properties": {"a": INTEGER}, "dependentSchemas": {"a": {}}}, "$.dependentSchemas"),
    ({"type": "object", "properties": {"a": INTEGER}, "dependencies": {"a": ["b"]}}, "$.dependencies"),
    ({"type": "array", "items": {}, "contains": STRING}, "$.contains"),
    ({"type": "array", "items": INTEGER, "contains": {"const": 1}, "minContains": 2}, "$.contains"),
    ({"type": "array", "items": INTEGER, "uniqueItems": True}, "$.uniqueItems"),
    ({"type": "number", "multipleOf": 0.5}, "$.multipleOf"),
    ({"type": "integer", "multipleOf": 1.5}, "$.multipleOf"),
    ({"type": "integer", "multipleOf": 1025}, "$.multipleOf"),
    ({"type": "integer", "multipleOf": 5, "minimum": 7}, "$.multipleOf"),
    ({"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 10_000}, "$.multipleOf"),
    ({**STRING, "pattern": "^a*$", "minLength": 2}, "$.minLength"),
    ({**STRING, "format": "date", "maxLength": 3}, "$.maxLength"),
    ({**STRING, "format": "date", "pattern": "^1"}, "$.pattern"),
    ({**STRING, "format": "regex"}, "$.format"),
    *(
        (text(pattern), "$.pattern")
        for pattern in (
            *("^(?!S)[A-Z]{1,2}$", "^(?=S)[A-Z]$", "^[A-Z](?<!S)$", r"^a\bb$", "^a^b$", "^a$b$", "^b(x|^a)$"),
            *('^"$', '^["a]$', r"^\\$", r"^\n$", r"^[\n]$", r"^\x22$", r"^\u005c$", r"^[\b]$", r"\Aa\Z", "^a*+$"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "place"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_what_the_grammar_does_not_enforce_is_named(schema: Any, place: str) -> None:
    gap = first_gap(schema)
    assert gap is not None
    assert gap.place == place


NEST: dict[str, Any] = {
    "$.properties.v": lambda inner: closed({"v": inner}),
    '$.properties["a b"]': lambda inner: closed({"a b": inner}),
    "$.items": lambda inner: {"type": "array", "items": inner},
    "$.prefixItems[1]": lambda inner: {"type": "array", "prefixItems": [STRING, inner]},
    "$.unevaluatedItems": lambda inner: {"type": "array", "unevaluatedItems": inner},
    "$.additionalProperties": lambda inner: {"type": "object", "additionalProperties": inner},
    "$.unevaluatedProperties": lambda inner: {"type": "object", "unevaluatedProperties": inner},
    '$.patternProperties["^a$"]': lambda inner: {"type": "object", "patternProperties": {"^a$": inner}},
    "$.anyOf[1]": lambda inner: {"anyOf": [STRING, inner]},
    "$.allOf[0]": lambda inner: {"allOf": [inner]},
    "$.$defs.A": lambda inner: {"$ref": "#/$defs/A", "$defs": {"A": inner}},
    "$.definitions.A": lambda inner: closed({"v": {"$ref": "#/definitions/A"}}, definitions={"A": inner}),
    "$.default": lambda inner: {"$ref": "#/default", "default": inner},
    "$.properties.v.items.properties.w": lambda inner: closed({"v": {"type": "array", "items": closed({"w": inner})}}),
}


@pytest.mark.parametrize("place", NEST)
@pytest.mark.parametrize("where", ["response_format", "tools"])
def test_a_request_with_it_is_a_400_anywhere(place: str, where: str) -> None:
    schema = NEST[place]({**INTEGER, **NOT_ONE})
    with pytest.raises(ApiError) as refusal:
        parse_request(json.dumps(request(where, schema)).encode())
    assert (refusal.value.status, refusal.value.param, refusal.value.code) == (400, where, "unsupported_schema")
    shown = "tools (f)" if where == "tools" else where
    assert refusal.value.message == (
        f"{shown}: the engine's grammar does not enforce {place}.not: list what is allowed instead"
    )


def request(where: str, schema: Any, **changes: Any) -> dict[str, Any]:
    function = {"name": "f", "parameters": schema, "strict": True, **changes}
    demand: Any = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **changes}},
        "tools": [{"type": "function", "function": function}],
    }
    return {"messages": [{"role": "user", "content": "hi"}], where: demand[where]}


def test_only_what_is_promised_is_checked() -> None:
    schema = closed({"v": NOT_ONE})
    for strict in (True, False):
        with pytest.raises(ApiError, match=r"\$\.properties\.v\.not"):
            parse_request(json.dumps(request("response_format", schema, strict=strict)).encode())
    parse_request(json.dumps(request("tools", schema, strict=False)).encode())
    parse_request(json.dumps({**request("tools", schema), "tool_choice": "none"}).encode())
    parse_request(json.dumps({**request("tools", schema, strict=False), "tool_choice": "required"}).encode())
    json_object = {"messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "json_object"}}
    parse_request(json.dumps(json_object).encode())


FRAGMENTS: dict[str, list[Any]] = {
    "integer": [
        *({"minimum": 2}, {"maximum": 5}, {"exclusiveMinimum": 1}, {"exclusiveMaximum": 6}, {"multipleOf": 2}),
        *({"enum": [1, 2, 5]}, {"const": 2}, {"not": {"const": 2}}, {"anyOf": [{"minimum": 3}]}, {"$ref": "#/$defs/A"}),
    ],
    "string": [
        *({"minLength": 1}, {"maxLength": 2}, {"pattern": "^a+$"}, {"format": "date"}, {"enum": ["a", "abc"]}),
        *({"const": "ab"}, {"not": {"const": "a"}}, {"oneOf": [{"const": "a"}, {"const": "ab"}]}),
    ],
    "object": [
        *({"properties": {"a": INTEGER, "b": INTEGER}}, {"required": ["a"]}, {"additionalProperties": INTEGER}),
        *({"patternProperties": {"^[ab]$": STRING}}, {"propertyNames": {"enum": ["b", "c"]}}, {"minProperties": 1}),
        *({"minProperties": 2}, {"maxProperties": 1}, {"dependentRequired": {"a": ["b"]}}),
        *({"unevaluatedProperties": False}, {"enum": [{"a": 1}, {}]}, {"anyOf": [{"required": ["b"]}]}),
    ],
    "array": [
        *({"items": INTEGER}, {"prefixItems": [INTEGER]}, {"minItems": 1}, {"maxItems": 2}, {"uniqueItems": True}),
        *({"contains": STRING}, {"unevaluatedItems": False}, {"enum": [[1], [1, 1]]}, {"allOf": [{"maxItems": 1}]}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", FRAGMENTS)
def test_every_pair_of_keywords_is_enforced_or_refused(kind: str) -> None:
    accepted = 0
    for first, second in combinations(FRAGMENTS[kind], 2):
        schema = {"type": kind, **LETTER, **first, **second}
        if first_gap(schema) is not None:
            continue
        try:
            compiled(schema)
        except RuntimeError:
            continue  # the engine refuses it: no document can follow it, or so it thinks
        accepted += hold(schema) > 0
    assert accepted
