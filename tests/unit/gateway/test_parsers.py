"""Parsers: any split of the text gives the same message, and nothing the model said is lost."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw.gateway.parsers.deltas import Delta, MessageBuilder
from openclaw.gateway.parsers.reply import ReplyParser

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
    ]
)


def read(text: str, cuts: list[int], **options: Any) -> tuple[dict[str, Any], int, bool]:
    """Return message, malformed calls and whether a stop string was found, for a text that comes in pieces."""
    parser = ReplyParser(**options)
    builder = MessageBuilder()
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    deltas: list[Delta] = [delta for a, b in pairwise(edges) for delta in parser.push(text[a:b])]
    deltas += parser.finish()
    for delta in deltas:
        builder.add(delta)
        assert getattr(delta, "text", "x"), f"empty {delta}"
    message = builder.message()
    for call in message.get("tool_calls", []):
        call["id"] = ""
    return message, parser.malformed, parser.stopped


OPTIONS = st.fixed_dictionaries(
    {
        "reasoning": st.booleans(),
        "tools": st.booleans(),
        "inside_reasoning": st.booleans(),
        "stops": st.sampled_from([[], ["STOP"], ["OP", "STOP"], ["T", "\n\n", "STOPPED"]]),
    }
)


@settings(max_examples=400)
@given(st.lists(FRAGMENTS, max_size=14).map("".join), st.lists(st.integers(0, 400), max_size=12), OPTIONS)
def test_any_split_gives_the_same_message(text: str, cuts: list[int], options: dict[str, Any]) -> None:
    whole = read(text, [], **options)
    assert read(text, cuts, **options) == whole
    assert read(text, list(range(len(text))), **options) == whole


@given(st.text(max_size=60))
def test_plain_text_is_not_touched(text: str) -> None:
    message, _, _ = read(text, [3, 7], reasoning=False)
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
    message, malformed, _ = read("\n".join([content, *blocks]), cuts, reasoning=False, tools=True)
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
        ("<think>raw</think>", {"reasoning": False}, "<think>raw</think>", None),
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
    message, count, _ = read(text, [], reasoning=False, tools=True)
    assert message["content"] == content
    found = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    assert found == calls
    assert count == malformed
