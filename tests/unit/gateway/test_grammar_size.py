"""Schemas that an engine should not compile are refused; the estimate is held to what xgrammar takes."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import pytest
import xgrammar

from openclaw.config.bounds import GRAMMAR_CHARACTERS, GRAMMAR_SIZE
from openclaw.gateway.errors import ApiError
from openclaw.gateway.grammar_limits import empty_reference, grammar_size, pattern_size
from openclaw.gateway.sampling import json_content
from openclaw.gateway.schema import parse_request

USER = [{"role": "user", "content": "Hello?"}]
STRING = {"type": "string"}
COMPILE_SECONDS = 20.0
"""The largest accepted schema takes 1.3 s on one core; a machine that is busy has this long."""
COMPILED_MB = 50


def nested(width: int, depth: int) -> dict[str, Any]:
    """Alternatives of alternatives, each leaf different."""
    leaf = iter(range(width**depth))

    def level(left: int) -> dict[str, Any]:
        return {"anyOf": [level(left - 1) for _ in range(width)]} if left else {"const": f"v{next(leaf)}"}

    return level(depth)


def fields(count: int, make: Any = lambda n: STRING, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{n}": make(n) for n in range(count)}, **more}


def parse(schema: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    parse_request(json.dumps({"messages": USER, "response_format": form}).encode())


ACCEPTED: dict[str, dict[str, Any]] = {
    "ordinary": fields(60, required=[f"p{n}" for n in range(60)]),
    "ten fields of a hundred characters": fields(10, lambda n: {**STRING, "maxLength": 90 + n}),
    "a long text": {**STRING, "maxLength": 100_000},
    "many optional fields": fields(700),
    "alternatives": nested(4, 4),
    "objects to choose from": {"anyOf": [{"properties": {f"p{n}_{m}": STRING for n in range(20)}} for m in range(50)]},
    "a large enum": {"enum": [f"v{n}" for n in range(3000)]},
    "an array of arrays": {
        "type": "array",
        "maxItems": 99,
        "items": {"type": "array", "maxItems": 99, "items": STRING},
    },
    "a tree": {"type": "object", "properties": {"child": {"$ref": "#"}}},
    "a list": {
        "$defs": {"n": {"anyOf": [{"type": "null"}, fields(1, lambda n: {"$ref": "#/$defs/n"})]}},
        "$ref": "#/$defs/n",
    },
    "a date": {**STRING, "pattern": r"^\d{4}-\d{2}-\d{2}$"},
    "a uuid": {**STRING, "pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"},
    "words": {**STRING, "pattern": "^(" + "|".join(f"word{n}" for n in range(500)) + ")$"},
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_accepted_schema_is_compiled_soon(tokenizer: Any, name: str) -> None:
    schema = ACCEPTED[name]
    parse(schema)
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo.from_huggingface(tokenizer), cache_enabled=False)
    began = time.process_time()
    compiled = compiler.compile_structural_tag(json.dumps({"type": "structural_tag", "format": json_content(schema)}))
    assert time.process_time() - began < COMPILE_SECONDS
    assert 0 < compiled.memory_size_bytes < COMPILED_MB << 20


REFUSED: dict[str, dict[str, Any]] = {
    "4^7 alternatives": nested(4, 7),
    "long texts": fields(20, lambda n: {**STRING, "maxLength": 300 + n}),
    "quantifiers in quantifiers": {**STRING, "pattern": "^([a-z]{0,100}x){0,100}$"},
    "a long pattern": {**STRING, "pattern": "(ab?|c*)" * 800},
    "a deep pattern": {**STRING, "pattern": "(" * 5000 + "a" + ")" * 5000},
    "patterns of names": {"patternProperties": {f"^a{n}[a-z]{{0,90}}$": STRING for n in range(60)}},
    "a larger enum": {"enum": [f"v{n}" for n in range(5000)]},
    "characters": {"description": "x" * GRAMMAR_CHARACTERS.most},
    "itself": {"$ref": "#"},
    "each other": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "all of itself": {"allOf": [{"$ref": "#"}]},
    "itself or a text": {"anyOf": [{"$ref": "#"}, STRING]},
    "an empty reference inside": fields(1, lambda n: {"$ref": "#/$defs/a"}, **{"$defs": {"a": {"$ref": "#/$defs/a"}}}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_costs_too_much_or_fits_nothing_is_refused(name: str) -> None:
    for stated in (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": REFUSED[name]}}},
        {"tools": [_tool(REFUSED[name], strict=True)]},
        {"tools": [_tool(REFUSED[name])], "tool_choice": "required"},
    ):
        with pytest.raises(ApiError) as caught:
            parse_request(json.dumps({"messages": USER, **stated}).encode())
        assert (caught.value.status, caught.value.param) == (400, next(iter(stated)))


def _tool(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "a", "parameters": schema, **more}}


def test_schemas_that_nobody_enforces_are_free() -> None:
    parse_request(json.dumps({"messages": USER, "tools": [_tool(REFUSED["long texts"])]}).encode())


def test_the_schemas_of_a_request_count_together() -> None:
    tools = [_tool(fields(1, lambda n: {**STRING, "maxLength": 200}), strict=True) for _ in range(6)]
    with pytest.raises(ApiError) as caught:
        parse_request(json.dumps({"messages": USER, "tools": tools}).encode())
    assert caught.value.limit == GRAMMAR_SIZE.name


def test_the_estimate_grows_with_lengths_and_patterns() -> None:
    assert grammar_size(STRING) < grammar_size({**STRING, "maxLength": 9}) < grammar_size({**STRING, "maxLength": 99})
    assert grammar_size({**STRING, "maxLength": 999}) == grammar_size({**STRING, "maxLength": 99_999})
    assert pattern_size("ab") == 2
    assert pattern_size("a{4}b") == 5
    assert pattern_size("(ab){3}[x-z]{2}") == 8
    assert pattern_size(r"\d{2}\{") == 3


def test_reference_cycles_are_found_in_linear_time() -> None:
    names = [f"d{n}" for n in range(3000)]
    chain = {name: {"$ref": f"#/$defs/{after}"} for name, after in pairwise(names)}
    assert empty_reference({"$defs": {**chain, names[-1]: STRING}, "$ref": "#/$defs/d0"}) is None
    assert empty_reference({"$defs": {**chain, names[-1]: {"$ref": "#/$defs/d0"}}, "$ref": "#/$defs/d0"}) is not None
