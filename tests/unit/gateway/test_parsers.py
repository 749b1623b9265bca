"""Parsers: any split of the text gives the same message, and nothing the model said is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chat_codec.formats import (
    JSON_IN_TAGS,
    PLAIN_JSON,
    REASONING_FORMATS,
    TOOL_FORMATS,
    XML_IN_TAGS,
    reply_format,
)
from chat_codec.reply_parser import Delta, MessageBuilder, ReasoningFormat, ReplyParser, ToolCallStart, ToolParser
from chat_codec.tool_calls import JsonToolCalls, PlainToolCalls, XmlToolCalls
from openclaw.config.runtime_variables import VARIABLES
from openclaw.owners import tool_call_id

FRAGMENTS = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<tool",
        "</",
        "<",
        "\n",
        "\n\n",
        " ",
        "STOP",
        "ST",
        '{"name": "read", "arguments": {"path": "a"}}',
        '{"name": "read", "arguments": ',
        '{"arguments": {"a": 1}, "name": "x"}',
        '{"name": "e", "arguments": "{}"}',
        '"',
        "\\",
        "{",
        "}",
        "text",
        "é🙂",
        "<function=",
        "<function=edit>",
        "</function>",
        "<parameter=text>",
        "<parameter=count>",
        "<parameter=",
        "</parameter>",
        "</param",
        ">",
        "7",
        '{"name": "edit", "parameters": {"count": 1}}',
        '{"name": "edit", "arguments": {"text": "x"}, "id": 3}; ',
        '{"name": "\\ud800", "arguments": {}}',
    ]
)
EDIT = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "flag": {"type": ["boolean", "null"]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "point": {"$ref": "#/$defs/point"},
        "any": {},
        "word": {"type": "string", "enum": ["yes", "no"]},
    },
    "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}}}},
}
CALL_ID = partial(tool_call_id, "chatcmpl-" + "0" * 32, 0)
FORMATS: dict[str, Callable[[], ToolParser | None]] = {
    "none": lambda: None,
    "json": lambda: JsonToolCalls(CALL_ID),
    "xml": lambda: XmlToolCalls({"edit": EDIT}, CALL_ID),
    "plain": lambda: PlainToolCalls({"edit", "read"}, CALL_ID),
}
THOUGHTS = {
    "none": None,
    "think": ReasoningFormat(),
    "begins inside": ReasoningFormat(begins_inside=True),
    "other tags": ReasoningFormat("<tool", "\n\n"),
}


def read(
    text: str, cuts: list[int], *, reasoning: str = "think", tools: str = "none", **options: Any
) -> tuple[dict[str, Any], int, bool]:
    """Return message, malformed calls and whether a stop string was found, for a text that comes in pieces."""
    parser = ReplyParser(reasoning=THOUGHTS[reasoning], tools=FORMATS[tools](), **options)
    builder = MessageBuilder()
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    deltas: list[Delta] = [delta for a, b in pairwise(edges) for delta in parser.push(text[a:b])]
    deltas += parser.finish()
    for delta in deltas:
        builder.add(delta)
        assert getattr(delta, "text", "x"), f"empty {delta}"
    message = builder.message()
    return message, parser.malformed, parser.stopped


OPTIONS = st.fixed_dictionaries(
    {
        "reasoning": st.sampled_from(sorted(THOUGHTS)),
        "tools": st.sampled_from(sorted(FORMATS)),
        "inside_reasoning": st.booleans(),
        "stops": st.sampled_from([[], ["STOP"], ["OP", "STOP"], ["T", "\n\n", "STOPPED"]]),
    }
)


OPENINGS = st.sampled_from(
    [
        "",
        "<tool_call>\n<function=edit>\n<parameter=text>\n",
        "<tool_call>\n<function=edit>\n",
        '<tool_call>\n{"name": "read", "arguments": {"a": "b"}',
        '{"name": "edit", "arguments": {"a": "b"}',
    ]
)


@settings(max_examples=200)
@given(
    st.tuples(OPENINGS, st.lists(FRAGMENTS, max_size=14).map("".join)).map("".join),
    st.lists(st.integers(0, 400), max_size=12),
    OPTIONS,
)
def test_any_split_gives_the_same_message(text: str, cuts: list[int], options: dict[str, Any]) -> None:
    whole = read(text, [], **options)
    assert read(text, cuts, **options) == whole
    assert read(text, list(range(len(text))), **options) == whole


@settings(max_examples=200)
@given(OPENINGS, st.lists(st.tuples(st.booleans(), FRAGMENTS), max_size=14), OPTIONS)
def test_nothing_the_model_said_is_lost(
    opening: str, fragments: list[tuple[bool, str]], options: dict[str, Any]
) -> None:
    words = [f"word{number}." for number, (speaks, _) in enumerate(fragments) if speaks]
    text = opening + "".join(
        f"word{number}.{fragment}" if speaks else fragment for number, (speaks, fragment) in enumerate(fragments)
    )
    message, _, stopped = read(text, [], **options)
    said = json.dumps(message, ensure_ascii=False)
    if not stopped:
        assert [word for word in words if word not in said] == []


@given(st.text(max_size=60))
def test_plain_text_is_not_touched(text: str) -> None:
    message, _, _ = read(text, [3, 7], reasoning="none")
    assert message["content"] == text


NAMES = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(
    st.text(alphabet="abc .\n", max_size=10),
    st.lists(st.tuples(NAMES, st.dictionaries(st.text(max_size=5), VALUES, max_size=3)), min_size=1, max_size=3),
    st.lists(st.integers(0, 500), max_size=12),
    st.booleans(),
)
def test_calls_in_qwens_format_are_read_back(
    content: str, calls: list[tuple[str, dict[str, Any]]], cuts: list[int], ascii_only: bool
) -> None:
    blocks = [
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=ascii_only)}\n</tool_call>"
        for name, arguments in calls
    ]
    message, malformed, _ = read("\n".join([content, *blocks]), cuts, reasoning="none", tools="json")
    assert malformed == 0
    assert (message["content"] or "") == content.rstrip("\n")
    found = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]
    assert found == calls


@pytest.mark.parametrize(
    ("text", "options", "content", "reasoning"),
    [
        ("<think>\nwhy\n</think>\n\nbecause", {}, "because", "why"),
        ("\n<think>\nwhy\n</think>\n\n", {}, "", "why"),
        ("why\n</think>\n\nbecause", {"inside_reasoning": True}, "because", "why"),
        ("<think>\nnever said", {}, "", "never said"),
        ("<think>\n\n</think>\n\nfast", {}, "fast", None),
        ("later <think> is text", {}, "later <think> is text", None),
        ("<think>raw</think>", {"reasoning": "none"}, "<think>raw</think>", None),
        ("  indented", {}, "  indented", None),
    ],
)
def test_reasoning(text: str, options: dict[str, Any], content: str, reasoning: str | None) -> None:
    message, _, _ = read(text, [], **options)
    assert message["content"] == content
    assert message.get("reasoning_content") == reasoning


@pytest.mark.parametrize(
    ("text", "content", "calls", "malformed"),
    [
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', None, [("f", '{"a": 1}')], 0),
        ('<tool_call>{"name": "f"}</tool_call>', None, [("f", "{}")], 0),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}', None, [("f", '{"a": 1}')], 0),
        ('<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>ok', "ok", [("f", '{"a": 1')], 1),
        ('<tool_call>{"name": "f", "arguments": {"a": "cut', None, [("f", '{"a": "cut')], 1),
        ("<tool_call>f(1)</tool_call>", "<tool_call>f(1)</tool_call>", [], 1),
        ("<tool_call>", "<tool_call>", [], 1),
        ("before\n\n<tool_call>[]</tool_call> after", "before<tool_call>[]</tool_call> after", [], 1),
        (
            '<tool_call>{"name": "f", "arguments": {"x": "</tool_call>"}}</tool_call>',
            None,
            [("f", '{"x": "</tool_call>"}')],
            0,
        ),
    ],
)
def test_tool_calls(text: str, content: str | None, calls: list[tuple[str, str]], malformed: int) -> None:
    message, count, _ = read(text, [], reasoning="none", tools="json")
    assert message["content"] == content
    found = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    assert found == calls
    assert count == malformed


@pytest.mark.parametrize(
    ("text", "content", "calls", "malformed"),
    [
        (
            'Look.\n<tool_call>\n<function=edit>\n<parameter=text>\na\n\n"b" <c>\n</parameter>\n'
            "<parameter=count>\n3\n</parameter>\n</function>\n</tool_call>",
            "Look.",
            [("edit", {"text": 'a\n\n"b" <c>', "count": 3})],
            0,
        ),
        ("<tool_call><function=edit></function></tool_call>", None, [("edit", {})], 0),
        (
            "<tool_call><function=edit><parameter=word>\n  no \n\n</parameter></function></tool_call>",
            None,
            [("edit", {"word": "no"})],
            0,
        ),
        (
            "<tool_call><function=edit><parameter=word>\n maybe\n</parameter></function></tool_call>",
            None,
            [("edit", {"word": " maybe"})],
            0,
        ),
        (
            "<tool_call>\n<function=edit><parameter=flag>True</parameter><parameter=either>5</parameter>"
            '<parameter=point>{"x": 1.5}</parameter><parameter=any>5</parameter></function>\n</tool_call>',
            None,
            [("edit", {"flag": True, "either": 5, "point": {"x": 1.5}, "any": "5"})],
            0,
        ),
        (
            "<tool_call><function=edit><parameter=flag>null</parameter><parameter=either>five</parameter>"
            "<parameter=count>many</parameter></function></tool_call> done",
            "done",
            [("edit", {"flag": None, "either": "five", "count": "many"})],
            0,
        ),
        (
            "<tool_call><function=other><parameter=x>1</parameter></function></tool_call>"
            "\n<tool_call><function=edit>\n</function></tool_call>",
            None,
            [("other", {"x": "1"}), ("edit", {})],
            0,
        ),
        ("<tool_call><function=edit></tool_call>", None, [("edit", {})], 1),
        ("<tool_call><function=edit>oops</function></tool_call>", "oops", [("edit", {})], 1),
        ("<tool_call>\nedit()\n</tool_call>", "<tool_call>\nedit()\n</tool_call>", [], 1),
        ("<tool_call><function=edit", "<tool_call><function=edit", [], 1),
        ("no call, <function=edit>", "no call, <function=edit>", [], 0),
    ],
)
def test_xml_tool_calls(
    text: str, content: str | None, calls: list[tuple[str, dict[str, Any]]], malformed: int
) -> None:
    message, count, _ = read(text, [], reasoning="none", tools="xml")
    assert message["content"] == content
    found = (
        [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]
        if calls
        else []
    )
    assert found == calls
    assert count == malformed


def test_an_unfinished_xml_call_is_delivered_as_far_as_it_came() -> None:
    message, count, _ = read("<tool_call><function=edit><parameter=text>\nhalf", [], tools="xml")
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ['{"text": "half']
    assert count == 1


@given(
    st.dictionaries(NAMES, VALUES, max_size=4),
    st.lists(st.integers(0, 500), max_size=12),
)
def test_calls_in_the_xml_format_are_read_back(arguments: dict[str, Any], cuts: list[int]) -> None:
    kinds = {str: "string", bool: "boolean", int: "integer", list: "array", type(None): "null"}
    schema = {"properties": {key: {"type": kinds[type(value)]} for key, value in arguments.items()}}
    written = "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for key, value in arguments.items()
    )
    text = f"<tool_call>\n<function=edit>\n{written}</function>\n</tool_call>"
    if any(isinstance(value, str) and "</parameter>" in value for value in arguments.values()):
        return
    parser, builder = XmlToolCalls({"edit": schema}, CALL_ID), MessageBuilder()
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for delta in [delta for a, b in pairwise(edges) for delta in parser.push(text[a:b])] + parser.finish():
        builder.add(delta)
    (call,) = builder.message()["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == arguments
    assert parser.malformed == 0


@pytest.mark.parametrize(
    ("text", "content", "calls", "malformed"),
    [
        ('{"name": "edit", "arguments": {"a": "}"}}', None, [("edit", '{"a": "}"}')], 0),
        (
            '\n{"name": "edit", "parameters": {}}; {"name": "read", "arguments": {}} ok',
            " ok",
            [("edit", "{}"), ("read", "{}")],
            0,
        ),
        ('{"arguments": {"a": 1}, "name": "read"}', None, [("read", '{"a": 1}')], 0),
        ('{"name": "rm", "arguments": {}}', '{"name": "rm", "arguments": {}}', [], 0),
        ('{"answer": 5}', '{"answer": 5}', [], 0),
        ('Here: {"name": "edit", "arguments": {}}', 'Here: {"name": "edit", "arguments": {}}', [], 0),
        ('{"name": "edit", "arguments": {"a": 1', None, [("edit", '{"a": 1')], 1),
        ('{"name": "edit", "arguments": {}, "id": 7}', ', "id": 7', [("edit", "{}")], 1),
        ('  {"name": ', '  {"name": ', [], 0),
    ],
)
def test_plain_tool_calls(text: str, content: str | None, calls: list[tuple[str, str]], malformed: int) -> None:
    message, count, _ = read(text, [], reasoning="none", tools="plain")
    assert message["content"] == content
    found = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    assert found == calls
    assert count == malformed


def test_names_leave_before_arguments() -> None:
    for name, text in {
        "json": '<tool_call>{"name": "edit", "arguments": {',
        "xml": "<tool_call><function=edit>",
        "plain": '{"name": "edit", "arguments": {',
    }.items():
        parser = FORMATS[name]()
        assert parser
        assert any(isinstance(delta, ToolCallStart) for delta in parser.push(text)), name


@pytest.mark.parametrize(
    ("template", "reasoning", "tools"),
    [
        ("<think></think><tool_call>", THOUGHTS["think"], JSON_IN_TAGS),
        ("</think><tool_call><function=f><parameter=p>", THOUGHTS["think"], XML_IN_TAGS),
        ("{{ messages }}", None, None),
    ],
)
def test_formats_are_read_from_the_chat_template(template: str, reasoning: Any, tools: Any) -> None:
    found = reply_format(template)
    assert (found.reasoning, found.tools) == (reasoning, tools)


def test_stated_formats_come_first() -> None:
    found = reply_format(
        "</think><tool_call>",
        reasoning_parser="generic",
        reasoning_tags="[THINK] [/THINK]",
        tool_call_parser="generic",
    )
    assert found.reasoning == ReasoningFormat("[THINK]", "[/THINK]")
    assert found.tools is PLAIN_JSON
    names = {variable.field: set(variable.choices) for variable in VARIABLES}
    assert names["tool_call_parser"] == TOOL_FORMATS.keys()
    assert names["reasoning_parser"] == REASONING_FORMATS.keys() | {"generic"}
