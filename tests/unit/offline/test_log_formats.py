"""Logs of every format become conversations; a wrong line is named, with what to write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openclaw.ledger.conversations import ImportFormatError
from openclaw.ledger.store import Ledger
from openclaw.offline.chat_logs import LoggedConversation
from openclaw.offline.reading import read_logs

USER = {"role": "user", "content": "What is 2 + 3?"}
REPLY = {"role": "assistant", "content": "It is **5**."}
COMPLAINT = {"role": "user", "content": "No bold."}
PLAIN = {"role": "assistant", "content": "It is 5."}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
}
TOOLS = [{"type": "function", "function": {"name": "add"}}]


def write(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def read(path: Path) -> list[LoggedConversation]:
    return read_logs(path).conversations


def pair(messages: list[Any], reply: Any, **further: Any) -> dict[str, Any]:
    return {"request": {"model": "m", "messages": messages}, "response": {"choices": [{"message": reply}]}, **further}


def test_each_assistant_message_of_a_chat_is_a_turn(tmp_path: Path) -> None:
    line = {"messages": [USER, REPLY, COMPLAINT, {**PLAIN, "weight": 0}], "tools": TOOLS}
    [conversation] = read(write(tmp_path / "a.jsonl", line))
    first, second = conversation.turns
    assert (first.messages, first.response_message, first.next_state, first.tools) == (
        [USER],
        REPLY,
        [COMPLAINT],
        TOOLS,
    )
    assert (second.messages, second.response_message, second.next_state) == ([USER, REPLY, COMPLAINT], PLAIN, None)
    assert (first.trainable, second.trainable) == (True, False)
    assert read(write(tmp_path / "b.jsonl", line))[0].session_id == conversation.session_id
    for number, given in enumerate(({"session_id": "17"}, {"thread_id": 17}, {"metadata": {"conversation_id": 17}})):
        assert read(write(tmp_path / f"c{number}.jsonl", {**line, **given}))[0].session_id == "17"


def test_pairs_of_requests_and_responses_become_one_conversation(tmp_path: Path) -> None:
    tool = {"role": "tool", "tool_call_id": "a", "content": "5"}
    lines = [
        pair([USER], CALL),
        pair([{"role": "user", "content": "Something else."}], PLAIN),
        {
            "body": {"messages": [USER, CALL, tool], "tools": TOOLS},
            "response": {"body": {"choices": [{"message": REPLY}]}},
        },
        {"messages": [USER, CALL, tool, REPLY, COMPLAINT], "response": "It is 5."},
    ]
    first, other = read(write(tmp_path / "a.jsonl", *lines))
    assert [turn.next_state for turn in first.turns] == [[tool], [COMPLAINT], None]
    assert [turn.response_message for turn in first.turns] == [CALL, REPLY, PLAIN]
    assert first.turns[1].tools == TOOLS
    assert [turn.response_message for turn in other.turns] == [PLAIN]


def test_a_reply_that_the_limit_cut_off_is_known_as_such(tmp_path: Path) -> None:
    line = {"request": {"messages": [USER]}, "response": {"choices": [{"message": REPLY, "finish_reason": "length"}]}}
    assert read(write(tmp_path / "a.jsonl", line))[0].turns[0].finish_reason == "length"


def test_a_folder_and_a_list_may_mix_formats(tmp_path: Path) -> None:
    guide = {"session_id": "g", "turns": [{"type": "main", "prompt": "q", "response": "a", "next_state": "n"}]}
    write(tmp_path / "a.jsonl", guide, {"messages": [USER, REPLY, COMPLAINT]})
    write(tmp_path / "b.json", [pair([USER], PLAIN), guide])
    write(tmp_path / "notes.txt", "not a log")
    assert len(read(tmp_path)) == 4


def test_a_ledger_is_one_by_its_content_or_in_its_folder(tmp_path: Path) -> None:
    Ledger(tmp_path / "run" / "checkpoints" / "ledger.sqlite").close()
    (tmp_path / "copy").write_bytes((tmp_path / "run" / "checkpoints" / "ledger.sqlite").read_bytes())
    assert read_logs(tmp_path / "run").ledger == tmp_path / "run" / "checkpoints" / "ledger.sqlite"
    assert read_logs(tmp_path / "copy").ledger == tmp_path / "copy"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", r"line 2 is not JSON"),
        (3, "line 2 is not an object; write"),
        ({"question": "q", "answer": "a"}, r"line 2: no known format \(it has answer, question\); write"),
        (
            {"\x1b]0;mine\x07\nb": 1, "\u202etxt": 2, "z" * 500: 3},
            r"line 2: no known format \(it has \]0;mine b, z+…\); write",
        ),
        ({"messages": []}, "messages is missing or empty; write"),
        ({"messages": [USER]}, "has no assistant message; write"),
        ({"messages": [{"role": "human", "content": "q"}]}, "message 0: the role is 'human'; write one of"),
        ({"messages": [{"role": "user", "content": 3}]}, "message 0: content is not a text"),
        ({"messages": [{"role": "user", "content": [3]}]}, "message 0: content is not a text"),
        ({"messages": [USER, {"role": "assistant", "function_call": {"name": "f"}}]}, "write tool_calls"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"name": "f"}]}]}, "message 1: tool_calls cannot be read; write"),
        ({"messages": [USER, REPLY], "tools": "add"}, "tools is not a list of objects"),
        ({"request": 3, "response": "a"}, "request is not an object; write"),
        ({"request": {"messages": [USER]}, "response": 3}, "response is neither a text nor an object; write"),
        ({"request": {"messages": [USER]}, "response": {"choices": []}}, "is not one choice; write a line for each"),
        ({"session_id": "s", "turns": [{"prompt": "q", "response": "a", "verdict": {"score": 1}}]}, "verdict is not one that export wrote"),
        ({"session_id": "s", "turns": [{"prompt": [{"role": "user", "content": [3]}], "response": "a"}]}, "turn 0: prompt, message 0: content is not a text"),
        ("[" * 200_000, "line 2 is not JSON .the JSON nests deeper"),
        ('{"messages": ' + "[" * 300 + "]" * 300 + "}", "line 2 is not JSON .the JSON nests deeper"),
        ({"messages": [USER, {**REPLY, "weight": "0"}]}, "message 1: weight is '0'; write 0 to leave"),
        ({"messages": [USER, {**REPLY, "weight": 2}]}, "message 1: weight is '2'; write 0 to leave"),
        ({"messages": [USER, REPLY], "thread_id": ["a"]}, "thread_id is .*; write a text or a number"),
        ({"messages": [USER, REPLY], "metadata": {"session_id": True}}, "session_id is 'True'; write a text or a number"),
        ({"request": {"messages": []}, "response": "a"}, "request: messages is missing or empty"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_named(tmp_path: Path, line: Any, says: str) -> None:
    path = write(tmp_path / "a.jsonl", {"messages": [USER, REPLY]}, line)
    with pytest.raises(ImportFormatError, match=says) as raised:
        read(path)
    assert "a.jsonl line 2" in str(raised.value)


def test_a_place_without_logs_says_what_to_name(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with pytest.raises(ImportFormatError, match=r"no such file or folder; did you mean .*logs\?"):
        read_logs(tmp_path / "lags")
    with pytest.raises(ImportFormatError, match="name a run's folder, or a folder or file of logs"):
        read_logs(tmp_path / "logs")
    with pytest.raises(ImportFormatError, match="holds no conversation"):
        read_logs(write(tmp_path / "empty.jsonl", "[]"))
