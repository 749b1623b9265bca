"""Logs of other interfaces: their answers are read, and what is not an answer is refused or counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openclaw.ledger.conversations import ImportedTurn, ImportFormatError
from openclaw.ledger.store import Ledger
from openclaw.messages.text import content_text
from openclaw.offline.intake import Wishes, take_in
from openclaw.offline.reading import Logs, read_logs

HI = {"role": "user", "content": "hi"}
NO_BOLD = {"role": "user", "content": "No bold."}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def read(folder: Path, *lines: Any) -> Logs:
    path = folder / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return read_logs(path)


def turns(folder: Path, *lines: Any) -> list[ImportedTurn]:
    return [turn for each in read(folder, *lines).conversations for turn in each.turns]


def anthropic(*content: Any, stop: str = "end_turn") -> dict[str, Any]:
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": list(content), "stop_reason": stop}  # fmt: skip


def responses(*output: Any, **further: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": "completed", "error": None, "output": list(output), **further}  # fmt: skip


TEXT = {"type": "text", "text": "hello"}
SAID = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "hello", "annotations": []}],
}
ANSWERS: dict[str, tuple[Any, Any]] = {
    "OpenAI": ({"choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]}, "hello"),
    "Ollama": ({"model": "m", "message": {"role": "assistant", "content": "hello"}, "done": True}, "hello"),
    "Anthropic": (anthropic(TEXT), [TEXT]),
    "Responses": (responses({"type": "reasoning", "summary": []}, SAID), "hello"),
    "a batch": ({"status_code": 200, "body": {"choices": [{"message": {"content": "hello"}}]}}, "hello"),
    "a message": ({"role": "assistant", "content": "hello"}, "hello"),
    "a text": ("hello", "hello"),
}


@pytest.mark.parametrize("form", ANSWERS)
def test_an_answer_and_the_request_that_carries_it_on_are_one_conversation(tmp_path: Path, form: str) -> None:
    answer, carried = ANSWERS[form]
    history = [HI, {"role": "assistant", "content": carried}, NO_BOLD]
    first, second = turns(
        tmp_path,
        {"request": {"messages": [HI]}, "response": answer},
        {"request": {"messages": history}, "response": "Bye."},
    )
    assert content_text(first.response_message["content"]) == "hello"
    assert first.response_message["role"] == "assistant"
    assert first.next_state == [NO_BOLD]
    assert (first.finish_reason, second.finish_reason) == ("stop", "stop")


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": [{"message": {"content": "hello"}, "finish_reason": "length"}]},
        {"choices": [{"message": {"content": "hello"}, "finish_reason": "content_filter"}]},
        {"message": {"role": "assistant", "content": "hello"}, "done_reason": "length"},
        anthropic(TEXT, stop="max_tokens"),
        responses(SAID, status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
    ],
)
def test_an_answer_that_was_cut_off_is_known_as_such(tmp_path: Path, answer: Any) -> None:
    assert turns(tmp_path, {"request": {"messages": [HI]}, "response": answer})[0].finish_reason == "length"


def call(arguments: str = '{"a": 1}') -> list[dict[str, Any]]:
    return [{"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments}}]


def test_anthropics_requests_have_system_tools_and_results(tmp_path: Path) -> None:
    use = {"type": "tool_use", "id": "c", "name": "add", "input": {"a": 1}}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [TEXT]}, {"type": "text", "text": "And?"}]}  # fmt: skip
    thought = {"type": "thinking", "thinking": "I add.", "signature": "x"}
    tools = [{"name": "add", "input_schema": {"type": "object"}}]
    request = {"system": [{"type": "text", "text": "Be brief."}], "messages": [HI], "tools": tools}
    asked, answered = turns(
        tmp_path,
        {"request": request, "response": anthropic(thought, {"type": "redacted_thinking", "data": "y"}, TEXT, use)},
        {
            "request": request | {"messages": [HI, {"role": "assistant", "content": [TEXT, use]}, result]},
            "response": "2",
        },
    )
    assert asked.tools == [ADD]
    assert asked.messages[0] == {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    reply = asked.response_message
    assert (reply["content"], reply["reasoning_content"], reply["tool_calls"]) == ([TEXT], "I add.", call())
    assert asked.next_state == [
        {"role": "tool", "tool_call_id": "c", "content": [TEXT]},
        {"role": "user", "content": [{"type": "text", "text": "And?"}]},
    ]
    assert len(answered.messages) == 5


def test_requests_of_responses_have_instructions_and_items(tmp_path: Path) -> None:
    used = {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a": 1}'}
    request = {"instructions": "Be brief.", "input": "hi", "tools": [{"type": "function", "name": "add", "parameters": {"type": "object"}}]}  # fmt: skip
    items = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}, SAID, used]
    items += [{"type": "function_call_output", "call_id": "c", "output": "2"}]
    asked, _ = turns(
        tmp_path,
        {"request": request, "response": responses(SAID, used)},
        {"request": request | {"input": items}, "response": "2"},
    )
    assert asked.messages == [{"role": "system", "content": "Be brief."}, HI]
    assert asked.tools == [ADD]
    assert (content_text(asked.response_message["content"]), asked.response_message["tool_calls"]) == ("hello", call())
    assert asked.next_state == [{"role": "tool", "tool_call_id": "c", "content": "2"}]


@pytest.mark.parametrize(
    ("part", "text", "thought"),
    [
        ({"type": "thinking", "thinking": "hm"}, "", "hm"),
        ({"type": "reasoning", "text": "hm"}, "", "hm"),
        ({"type": "refusal", "refusal": "I can't."}, "I can't.", None),
        ({"type": "input_text", "text": "hello"}, "hello", None),
        ({"type": "output_text", "text": "hello"}, "hello", None),
        ({"type": "tool_use", "id": "c", "name": "add", "input": {}}, "", None),
    ],
)
def test_a_part_that_is_text_is_no_picture(tmp_path: Path, part: Any, text: str, thought: str | None) -> None:
    logs = read(tmp_path, {"messages": [HI, {"role": "assistant", "content": [part]}, NO_BOLD]})
    reply = logs.conversations[0].turns[0].response_message
    assert (content_text(reply["content"]), reply.get("reasoning_content")) == (text, thought)
    assert ("tool_calls" in reply) == (part["type"] == "tool_use")
    assert take_in(logs, Ledger(tmp_path / "new.sqlite"), Wishes()).reasons == {}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}, "log_media"),
        ({"role": "user", "content": [{"type": "document", "source": {}}]}, "log_media"),
        ({"role": "user", "content": "see", "images": ["iVBOR"]}, "log_media"),
        ({"role": "user", "content": [{"type": "server_tool_use", "id": "a"}]}, "log_part"),
    ],
)
def test_other_parts_keep_a_turn_out_of_training(tmp_path: Path, message: Any, reason: str) -> None:
    logs = read(tmp_path, {"messages": [message, {"role": "assistant", "content": "a"}, NO_BOLD]})
    assert take_in(logs, Ledger(tmp_path / "new.sqlite"), Wishes()).reasons == {reason: 1}


@pytest.mark.parametrize(
    ("message", "text", "thought"),
    [
        ({"content": None, "refusal": "I can't."}, "I can't.", None),
        ({"content": "5", "thinking": "2 + 3"}, "5", "2 + 3"),
        ({"content": "5", "reasoning": "2 + 3"}, "5", "2 + 3"),
        ({"content": "5", "reasoning_content": "2 + 3", "refusal": None}, "5", "2 + 3"),
    ],
)
def test_the_words_of_a_reply_are_found_under_their_names(
    tmp_path: Path, message: Any, text: str, thought: Any
) -> None:
    (turn,) = turns(tmp_path, {"request": {"messages": [HI]}, "response": {"choices": [{"message": message}]}})
    assert turn.response_message == {"role": "assistant", "content": text} | (
        {"reasoning_content": thought} if thought else {}
    )


@pytest.mark.parametrize(
    ("response", "says"),
    [
        ({}, r"no known form \(it has nothing\); write the answer of OpenAI's"),
        ({"model": "m", "text": "hello"}, r"no known form \(it has model, text\)"),
        ({"model": "m", "response": "hello", "done": True}, r"no known form \(it has done, model, response\)"),
        ({"candidates": [{"content": {"parts": []}}]}, r"no known form \(it has candidates\)"),
        ({"role": "user", "content": "hello"}, "a message of role 'user'; a reply is the assistant's"),
        ({"choices": [{"message": {"role": "user", "content": "hello"}}]}, "a message of role 'user'"),
        ({"message": {"role": "tool", "content": "hello"}}, "a message of role 'tool'"),
        ({"message": "hello"}, "no message with a content"),
        ({"message": {"role": "assistant"}}, "no message with a content"),
        ({"choices": [{"text": "hello"}]}, "no message with a content"),
        ({"choices": [{"message": {}}]}, "no message with a content"),
        ({"output": []}, "no message with a content"),
        ({"output": [{"type": "web_search_call"}]}, "items of type 'web_search_call' are not read"),
        ({"content": 3}, "message 0: content is not a text"),
        (None, "neither a text nor an object"),
        ([{"delta": {}}], "neither a text nor an object"),
        (anthropic({"type": "tool_result", "tool_use_id": "c", "content": "2"}), "holds a tool's result"),
    ],
)
def test_what_is_no_answer_is_never_an_empty_reply(tmp_path: Path, response: Any, says: str) -> None:
    with pytest.raises(ImportFormatError, match=rf"log\.jsonl line 2[:,].*{says}"):
        read(tmp_path, {"messages": [HI, {"role": "assistant", "content": "a"}]}, {"request": {"messages": [HI]}, "response": response})  # fmt: skip


def test_a_request_without_its_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportFormatError, match="previous_response_id names messages that the log lacks"):
        read(tmp_path, {"request": {"input": "hi", "previous_response_id": "resp_0"}, "response": responses(SAID)})


@pytest.mark.parametrize(
    "failed",
    [
        {"response": {"error": {"message": "rate limited"}}},
        {"response": {"error": "model not found"}},
        {"response": {"type": "error", "error": {"type": "overloaded_error"}}},
        {"response": {"status_code": 500, "body": {"error": {"message": "no"}}}},
        {"response": None, "error": {"code": "batch_expired"}},
        {"response": responses(status="failed", error={"code": "server_error"})},
    ],
)
def test_a_call_that_failed_is_left_out_and_counted(tmp_path: Path, failed: Any) -> None:
    good = {"messages": [HI, {"role": "assistant", "content": "a"}, NO_BOLD]}
    logs = read(tmp_path, good, {"request": {"messages": [HI]}, **failed})
    assert len(logs.conversations) == 1
    assert "not trained: log_failed_call 1" in list(take_in(logs, Ledger(tmp_path / "new.sqlite"), Wishes()).lines())
    with pytest.raises(ImportFormatError, match=r"holds no conversation \(left out: log_failed_call 1\)"):
        read(tmp_path, {"request": {"messages": [HI]}, **failed})


def node(name: str, parent: str | None, role: str, *parts: Any, **further: Any) -> dict[str, Any]:
    content = {"content_type": further.pop("kind", "text"), "parts": list(parts)}
    message = {"author": {"role": role}, "content": content, "recipient": "all", "status": "finished_successfully", **further}  # fmt: skip
    return {name: {"id": name, "parent": parent, "children": [], "message": message}}


def chatgpt(*nodes: dict[str, Any], current: str) -> dict[str, Any]:
    mapping: dict[str, Any] = {"root": {"id": "root", "message": None, "parent": None, "children": []}}
    for each in nodes:
        mapping |= each
    return {"title": "t", "create_time": 1.0, "conversation_id": "conv", "mapping": mapping, "current_node": current}


TREE = (
    node("s", "root", "system", "", metadata={"is_visually_hidden_from_conversation": True}),
    node("c", "s", "user", kind="user_editable_context"),
    node("u", "c", "user", "hi"),
    node("old", "u", "assistant", "Hey **you**"),
    node("t", "u", "assistant", kind="thoughts"),
    node("a", "t", "assistant", "hello"),
    node("n", "a", "user", "No bold."),
    node("run", "n", "assistant", "print(1)", recipient="python"),
    node("out", "run", "tool", "1"),
    node("b", "out", "assistant", "Bye", metadata={"finish_details": {"type": "max_tokens"}}),
)


def test_an_export_of_chatgpt_is_the_path_to_its_current_node(tmp_path: Path) -> None:
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([chatgpt(*TREE, current="b"), chatgpt(node("u", "root", "user", "hi"), current="u")]))
    logs = read_logs(path)
    (conversation,) = logs.conversations
    first, tool, last = conversation.turns
    assert conversation.session_id == "conv"
    assert (first.messages, first.response_message, first.next_state) == ([HI], {"role": "assistant", "content": "hello"}, [NO_BOLD])  # fmt: skip
    assert tool.response_message["tool_calls"][0]["function"] == {
        "name": "python",
        "arguments": '{"input": "print(1)"}',
    }
    assert [turn.trainable for turn in conversation.turns] == [True, False, True]
    assert [turn.finish_reason for turn in conversation.turns] == ["stop", "stop", "length"]
    assert last.messages[-1] == {"role": "tool", "content": "1"}
    assert logs.left_out == {"log_other_branch": 1, "log_no_reply": 1}


def test_a_picture_of_chatgpt_is_media(tmp_path: Path) -> None:
    asked = node("u", "root", "user", {"content_type": "image_asset_pointer"}, "hi", kind="multimodal_text")
    logs = read(tmp_path, chatgpt(asked, node("a", "u", "assistant", "hello"), node("n", "a", "user", "Thanks."), current="n"))  # fmt: skip
    assert take_in(logs, Ledger(tmp_path / "new.sqlite"), Wishes()).reasons == {"log_media": 1}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mapping": 3}, "mapping is not an object of nodes"),
        ({"mapping": {"a": 3}}, "mapping is not an object of nodes"),
        ({"current_node": "gone"}, "current_node does not lead to the conversation's start"),
        ({"mapping": {"b": {"parent": "b", "message": None}}}, "current_node does not lead to the conversation's start"),
        ({"mapping": {"b": {"parent": None, "message": {"author": "me"}}}}, "node b: no author or content that is known"),
        ({"mapping": {"b": {"parent": None, "message": {"author": {"role": "user"}, "content": {"parts": [3]}}}}}, "neither a text nor"),
    ],
)  # fmt: skip
def test_a_damaged_export_is_named(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(ImportFormatError, match=rf"log\.jsonl, item 1.*{says}"):
        read(tmp_path, [chatgpt(*TREE, current="b"), chatgpt(*TREE, current="b") | change])


def test_a_sharegpt_file_has_speakers_tools_and_weights(tmp_path: Path) -> None:
    said = [("system", "Be brief."), ("human", "hi"), ("function_call", '{"name": "add", "arguments": {"a": 1}}')]
    said += [("observation", "2"), ("gpt", "hello"), ("user", "No bold."), ("chatgpt", "Bye")]
    spoken = [{"from": speaker, "value": text} for speaker, text in said]
    spoken[-1]["weight"] = 0  # pyright: ignore[reportArgumentType]
    logs = read(tmp_path, {"id": "abc_0", "conversations": spoken, "tools": json.dumps([{"name": "add", "parameters": {"type": "object"}}])})  # fmt: skip
    (conversation,) = logs.conversations
    assert conversation.session_id == "abc_0"
    called, first, last = conversation.turns
    assert called.response_message["tool_calls"][0]["function"]["name"] == "add"
    assert called.next_state == [{"role": "tool", "content": "2"}]
    assert (first.response_message, first.next_state, first.tools) == ({"role": "assistant", "content": "hello"}, [NO_BOLD], [ADD])  # fmt: skip
    assert [turn.trainable for turn in conversation.turns] == [True, True, False]
    assert last.messages[0] == {"role": "system", "content": "Be brief."}


def test_a_sharegpt_file_may_write_roles(tmp_path: Path) -> None:
    (turn,) = turns(tmp_path, {"system": "Be brief.", "conversations": [HI, {"role": "assistant", "content": "hello"}]})
    assert turn.messages == [{"role": "system", "content": "Be brief."}, HI]


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (3, "conversations is not a list"),
        ([3], 'message 0: write {"from": "human", "value": "..."}'),
        ([{"from": "alien", "value": "hi"}], "message 0: nobody is called 'alien'; write one of human, user, gpt"),
        ([{"from": ["gpt"], "value": "hi"}], "message 0: nobody is called"),
        ([{"from": "human", "value": 3}], "message 0: value is not a text but int"),
        ([{"from": "function_call", "value": "add(1)"}], "message 0: the value of a function_call is JSON"),
    ],
)
def test_a_wrong_sharegpt_line_is_named(tmp_path: Path, said: Any, says: str) -> None:
    with pytest.raises(ImportFormatError, match=rf"log\.jsonl.*{says}"):
        read(tmp_path, {"conversations": said})
