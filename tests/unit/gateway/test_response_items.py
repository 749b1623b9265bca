"""Items of the Responses API become chat messages, and a reply that comes back is the message that went out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.gateway.dialects.response_items import (
    ItemWriter,
    ToolName,
    entries_of,
    flat_name,
    named_turn,
    read_items,
    read_tools,
)
from openclaw.gateway.errors import ApiError
from openclaw.owners import new_completion_id, tool_call_id

TURN = "chatcmpl-" + "ab" * 16
DIGITS = "ab" * 16
NAMES = {"patch": ToolName("patch", custom=True), "team__spawn": ToolName("spawn", "team"), "run": ToolName("run")}


def writer(handle: str | None = TURN) -> ItemWriter:
    return ItemWriter(DIGITS, NAMES, handle)


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def call(name: str, arguments: str, number: int = 0) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": tool_call_id(TURN, 0, number), "type": "function", "function": function}


def test_all_system_text_leads() -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be "}, {"type": "input_text", "text": "kind"}]},
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "later"},
    ]  # fmt: skip
    assert read_items(items, "first") == [
        {"role": "system", "content": "first\n\nbe kind\n\nlater"},
        {"role": "user", "content": "hi"},
    ]
    assert read_items([user("a")]) == [{"role": "user", "content": "a"}]


def test_pictures_and_parts_stay_in_order() -> None:
    url = "data:image/png;base64,AAAA"
    said = {"role": "user", "content": [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": url, "detail": "high"}]}  # fmt: skip
    shown = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": url}]}
    assert read_items([said, shown]) == [
        {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": url, "detail": "high"}}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "image_url", "image_url": {"url": url}}]},
    ]  # fmt: skip


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
CALLS = st.lists(
    st.tuples(
        st.sampled_from([*NAMES, "unknown"]), TEXTS | st.builds(lambda text: json.dumps({"input": text, "a": 1}), TEXTS)
    ),
    max_size=3,
)


@given(TEXTS, TEXTS, CALLS, st.booleans())
def test_a_reply_that_comes_back_is_the_message_that_went_out(
    text: str, thought: str, calls: list[tuple[str, str]], complete: bool
) -> None:
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [call(name, arguments, number) for number, (name, arguments) in enumerate(calls)]
    items = writer().of_message(message, complete=complete)
    before, after = user("go"), {"type": "function_call_output", "call_id": "c", "output": "done"}
    [_, back, _] = read_items([before, *json.loads(json.dumps(items)), after])
    assert back == {**message, "id": TURN}
    assert len({item["id"] for item in items}) == len(items)


def test_a_custom_call_gives_its_text_alone() -> None:
    [item] = writer().of_message(
        {"role": "assistant", "content": None, "tool_calls": [call("patch", '{"input": "*** Begin"}')]}, complete=True
    )
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", "*** Begin")
    [item] = writer().of_message(
        {"role": "assistant", "content": None, "tool_calls": [call("team__spawn", "{}")]}, complete=True
    )
    assert (item["name"], item["namespace"], item["arguments"]) == ("spawn", "team", "{}")


@pytest.mark.parametrize("dropped", [("id",), ("id", "status", "type"), ("encrypted_content",)])
def test_a_client_may_drop_what_it_does_not_know(dropped: tuple[str, ...]) -> None:
    message = {"role": "assistant", "content": "hm", "reasoning_content": "so", "tool_calls": [call("run", "{}")]}
    items = writer().of_message(message, complete=True)
    kept = [
        {name: value for name, value in item.items() if name not in dropped or (name == "type" and "role" not in item)}
        for item in items
    ]
    [_, back] = read_items([user("go"), *kept])
    assert back.pop("id") == TURN
    assert back == message


def test_two_replies_in_a_row_stay_two() -> None:
    first, second = new_completion_id(), new_completion_id()
    say = {"role": "assistant", "content": "same"}
    items = [
        item
        for turn in (first, second)
        for item in ItemWriter(turn.removeprefix("chatcmpl-"), {}, None).of_message(say, complete=True)
    ]
    assert [message["id"] for message in read_items([user("go"), *items])[1:]] == [first, second]
    unnamed = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert [message["content"] for message in read_items(unnamed)] == ["a", "b"]


def test_a_foreign_handle_names_no_turn() -> None:
    assert named_turn("ENCRYPTED-PROBE") == named_turn("msg_d0ed718e9c1f4d71ac0188d6eb54657f") == named_turn(None) == ""
    assert named_turn(f"rs_{DIGITS}00") == named_turn(TURN) == TURN


def test_tools_of_every_kind() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: x"}
    functions, names, kept = read_tools(
        [
            {"type": "function", "name": "run", "parameters": {"type": "object"}, "strict": False},
            {"type": "namespace", "name": "team", "tools": [{"type": "function", "name": "run"}]},
            {"type": "custom", "name": "patch", "description": "Edits.", "format": grammar},
            {"type": "web_search"},
            {"type": "tool_search", "execution": "client"},
        ]
    )
    assert [tool["function"]["name"] for tool in functions] == ["run", "team__run", "patch"]
    assert names["team__run"] == ToolName("run", "team")
    assert flat_name("run", "team") == "team__run"
    assert functions[2]["function"]["parameters"]["required"] == ["input"]
    assert functions[2]["function"]["description"] == "Edits.\n\nIts input follows this lark grammar:\nstart: x"
    assert [tool["type"] for tool in kept] == ["function", "namespace", "custom"]


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([{"type": "computer_call"}], "input.0: items of type 'computer_call' cannot be read"),
        ([7], "input.0: an item is a JSON object"),
        ([user("a"), {"type": "function_call", "name": "a"}], "input.1.arguments"),
        ([{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}], "input.0.content"),
        (
            [{"role": "assistant", "content": [{"type": "input_image", "image_url": "data:"}]}],
            "input.0: pictures belong",
        ),
        ([{"role": "robot", "content": ""}], "input.0.role"),
    ],
)
def test_what_cannot_be_read_is_named(items: list[Any], words: str) -> None:
    with pytest.raises(ApiError, match=words.replace("(", r"\(")) as caught:
        read_items(items)
    assert (caught.value.status, caught.value.param) == (400, "input")


def test_two_tools_of_one_name_are_refused() -> None:
    twice = [
        {"type": "function", "name": "a__b"},
        {"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "b"}]},
    ]
    with pytest.raises(ApiError, match="two tools 'a__b'"):
        read_tools(twice)


def test_only_the_tokens_of_the_text_have_numbers() -> None:
    entries = [
        {"bytes": list(word.encode()), "logprob": -1.0}
        for word in ("<think>", "so", "</think>", "s", "o", " é", "<call>")
    ]
    found = entries_of("so é", entries, after="so")
    assert [bytes(entry["bytes"]).decode() for entry in found] == ["s", "o", " é"]
    assert entries_of("absent", entries) == []
