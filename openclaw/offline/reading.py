"""Reads ``DATA_PATH``: finds out what each file is, and returns its conversations.

A path is a file or a folder. A folder or file with a ledger is a run (or the folder of `openclaw.server.collect`), whose
turns keep their token ids. Otherwise the ``.jsonl`` and ``.json`` files are logs: conversations of the guide and of
``inspect export``, chat logs (`openclaw.offline.chat_logs`), or exports of ChatGPT and ShareGPT files
(below). One file may mix formats.

Guarantees: an unreadable line is an error that names file and line, and says what to write. What is left out is counted by
reason. Nothing is written.

Exports become lines with ``messages``:

* ChatGPT's ``conversations.json`` is a list of trees (``mapping``). The conversation is the path to ``current_node``. Replies
  on other branches are counted. A call of one of ChatGPT's own tools stays in the history and is not trained, because the
  export does not say how the tool was offered. Hidden messages and summaries of thoughts are left out.
* ShareGPT's ``conversations`` are messages with ``from`` and ``value``, or with ``role`` and ``content``.

Nothing in them is guessed. A speaker or a content of an unknown kind is an error that names the line.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groundwork.command_line import nearest_path
from openclaw.ledger.conversations import CUT_OFF, FORMAT, ImportFormatError, read_objects, read_session_id, read_turns
from openclaw.offline.chat_logs import (
    FAILED_CALL,
    WRITE_MESSAGES,
    WRITE_PAIR,
    LoggedConversation,
    Pairs,
    conversation_of,
    is_pair,
)
from openclaw.offline.other_forms import keys_of
from openclaw.runtime.where import LEDGER_NAME, find_ledger

Line = dict[str, Any]

OTHER_BRANCH = "log_other_branch"
"""Reason of a reply that is left out: it is on a branch that the user left."""
NO_REPLY = "log_no_reply"
"""Reason of a conversation that is left out: nobody replied."""
SPEAKERS = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "assistant", "model", "bot", "bing", "bard", "claude"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function_response"), "tool"),
    **{role: role for role in ("system", "developer")},
}
CALLER = "function_call"
CHATGPT_ROLES = ("system", "user", "assistant", "tool")
HIDDEN = frozenset(
    {"thoughts", "reasoning_recap", "user_editable_context", "model_editable_context", "app_pairing_content"}
)
"""Contents of ChatGPT that are neither said to the user nor by her."""
KEPT = ("weight", "step_loss_mask")


def is_export(value: Mapping[str, Any]) -> bool:
    """Return whether an object is a conversation of an export."""
    return "mapping" in value or ("conversations" in value and "messages" not in value)


def read_export(value: Mapping[str, Any], place: str) -> tuple[Line | None, Counter[str]]:
    """Return an export's conversation as a line with ``messages``, None if nobody replies, and what is left out by reason.

    Raises:
        ImportFormatError: naming the message.
    """
    line, left_out = _chatgpt(value, place) if "mapping" in value else (_sharegpt(value, place), Counter[str]())
    if any(message.get("role") == "assistant" for message in line["messages"]):
        return line, left_out
    return None, left_out + Counter({NO_REPLY: 1})


def _sharegpt(value: Mapping[str, Any], place: str) -> Line:
    turns = value["conversations"]
    if not isinstance(turns, list):
        raise ImportFormatError(f'{place}: conversations is not a list; write [{{"from": "human", "value": "..."}}]')
    system = value.get("system")
    messages = [{"role": "system", "content": system}] if system else []
    messages += [_spoken(item, f"{place}, message {number}") for number, item in enumerate(turns)]
    return {
        "messages": messages,
        "session_id": value.get("id"),
        **_given(value, "tools", "session_id", "conversation_id"),
    }


def _spoken(turn: Any, place: str) -> Line:
    if not isinstance(turn, dict) or not {"from", "role"} & turn.keys():
        raise ImportFormatError(f'{place}: write {{"from": "human", "value": "..."}}')
    if "from" not in turn:
        return turn
    speaker, text = turn["from"], turn.get("value")
    if not isinstance(text, str | None):
        raise ImportFormatError(f"{place}: value is not a text but {type(text).__name__}")
    if speaker == CALLER:
        return {"role": "assistant", "content": None, "tool_calls": _calls(text, place), **_given(turn, *KEPT)}
    if not isinstance(speaker, str) or speaker not in SPEAKERS:
        raise ImportFormatError(
            f"{place}: nobody is called {str(speaker)[:100]!r}; write one of {', '.join([*SPEAKERS, CALLER])}"
        )
    return {"role": SPEAKERS[speaker], "content": text, **_given(turn, *KEPT)}


def _calls(text: str | None, place: str) -> list[Line]:
    """Return the calls of a ``function_call``, whose text is the JSON of one or a list."""
    try:
        document = json.loads(text or "")
    except (ValueError, RecursionError):
        document = None
    calls = [_object(call) for call in (document if isinstance(document, list) else [document])]
    if not all(isinstance(call.get("name"), str) for call in calls):
        raise ImportFormatError(
            f'{place}: the value of a {CALLER} is JSON; write {{"name": "...", "arguments": {{...}}}}'
        )
    return [
        {"type": "function", "function": {"name": call["name"], "arguments": json.dumps(call.get("arguments", {}))}}
        for call in calls
    ]


def _object(value: Any) -> Line:
    """Return an object, or an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def _given(value: Mapping[str, Any], *names: str) -> Line:
    return {name: value[name] for name in names if value.get(name) is not None}


def _chatgpt(value: Mapping[str, Any], place: str) -> tuple[Line, Counter[str]]:
    nodes = value["mapping"]
    if not isinstance(nodes, dict) or not all(isinstance(node, dict) for node in nodes.values()):
        raise ImportFormatError(f"{place}: mapping is not an object of nodes; leave the export as ChatGPT wrote it")
    name = value.get("current_node")
    path: list[str] = []
    while name is not None:
        if not isinstance(name, str) or name not in nodes or len(path) > len(nodes):
            raise ImportFormatError(
                f"{place}: current_node does not lead to the conversation's start; leave the export as ChatGPT wrote it"
            )
        path.append(name)
        name = nodes[name].get("parent")
    messages = [
        told for item in reversed(path) if (told := _told(nodes[item].get("message"), f"{place}, node {item[:100]}"))
    ]
    beside = nodes.keys() - set(path)
    others = sum(_is_reply(_told(nodes[item].get("message"), f"{place}, node {item[:100]}")) for item in beside)
    line = {"messages": messages, "session_id": value.get("conversation_id") or value.get("id")}
    return line, Counter({OTHER_BRANCH: others} if others else {})


def _is_reply(message: Line | None) -> bool:
    return message is not None and message["role"] == "assistant" and "tool_calls" not in message


def _told(message: Any, place: str) -> Line | None:
    """Return what a node of ChatGPT's tree says, or None."""
    if message is None:
        return None
    author, content = (message.get(name) if isinstance(message, dict) else None for name in ("author", "content"))
    if not isinstance(author, dict) or not isinstance(content, dict) or author.get("role") not in CHATGPT_ROLES:
        raise ImportFormatError(f"{place}: no author or content that is known; leave the export as ChatGPT wrote it")
    metadata = _object(message.get("metadata"))
    if content.get("content_type") in HIDDEN or metadata.get("is_visually_hidden_from_conversation"):
        return None
    parts: Any = content.get("parts")
    parts = parts if isinstance(parts, list) else [content.get("text", content.get("result"))]
    read = [_part(part, place) for part in parts if part not in (None, "")]
    if not read:
        return None
    role, recipient = author["role"], message.get("recipient") or "all"
    text = all(part["type"] == "text" for part in read)
    said: Any = "".join(part["text"] for part in read) if text else read
    if role == "assistant" and recipient != "all":
        arguments = said if isinstance(said, str) else json.dumps(said)
        call = {"type": "function", "function": {"name": str(recipient), "arguments": json.dumps({"input": arguments})}}
        return {"role": role, "content": None, "tool_calls": [call], "weight": 0}
    if role == "assistant" and _cut(message, metadata):
        return {"role": role, "content": said, "finish_reason": CUT_OFF}
    return {"role": role, "content": said}


def _part(part: Any, place: str) -> Line:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, dict) and isinstance(part.get("text"), str):  # what was heard of a spoken message
        return {"type": "text", "text": part["text"]}
    if not isinstance(part, dict) or not isinstance(part.get("content_type"), str):
        raise ImportFormatError(f"{place}: a part is neither a text nor an object with content_type")
    return {"type": part["content_type"]}


def _cut(message: Line, metadata: Line) -> bool:
    """Return whether a reply was cut off, by a limit or by the user."""
    return (
        _object(metadata.get("finish_details")).get("type") in ("max_tokens", "interrupted")
        or message.get("status") == "in_progress"
    )


SQLITE = b"SQLite format 3\x00"
SUFFIXES = (".jsonl", ".json")
LIVE = "to learn from live conversations, unset it"


@dataclass
class Logs:
    """What a path holds: ``ledger`` of a run, or else the conversations of ``files``.

    ``left_out`` counts what became no turn, by reason.
    """

    path: Path
    ledger: Path | None = None
    files: list[Path] = field(default_factory=list[Path])
    conversations: list[LoggedConversation] = field(default_factory=list[LoggedConversation])
    left_out: Counter[str] = field(default_factory=Counter[str])


def read_logs(path: Path) -> Logs:
    """Return what ``path`` holds.

    Raises:
        ImportFormatError: there is nothing to read, or a line has no known format.
    """
    if not path.exists():
        raise ImportFormatError(f"DATA_PATH {path}: no such file or folder{nearest_path(path)}; {LIVE}")
    if path.is_dir():
        if text := find_ledger(path):
            return Logs(path, ledger=text)
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
        if not files:
            raise ImportFormatError(
                f"DATA_PATH {path}: the folder has neither {LEDGER_NAME} nor a .jsonl or .json file; name a run's folder, "
                f"or a folder or file of logs; {LIVE}"
            )
    elif _begins_with(path, SQLITE):
        return Logs(path, ledger=path)
    else:
        files = [path]
    logs = Logs(path, files=files)
    pairs = Pairs()
    for file in files:
        logs.conversations += _conversations(file, pairs, logs.left_out)
    logs.conversations += pairs.conversations()
    if pairs.failed:
        logs.left_out[FAILED_CALL] += pairs.failed
    if not logs.conversations:
        text = ", ".join(f"{reason} {count}" for reason, count in sorted(logs.left_out.items()))
        raise ImportFormatError(
            f"DATA_PATH {path} holds no conversation{f' (left out: {text})' if text else ''}; {FORMAT} is one"
        )
    return logs


def _conversations(file: Path, pairs: Pairs, left_out: Counter[str]) -> Iterator[LoggedConversation]:
    """Yield the conversations of a file; pairs of requests and responses go to ``pairs``."""
    for place, value in _values(file):
        if not isinstance(value, dict):
            raise ImportFormatError(
                f"{place} is not an object; write {FORMAT}, or {WRITE_MESSAGES.removeprefix('write ')}"
            )
        if "turns" in value:
            yield LoggedConversation(place, read_session_id(value, place), read_turns(value, place))
        elif is_pair(value):
            pairs.add(value, place)
        elif is_export(value):
            line, others = read_export(value, place)
            left_out.update(others)
            if line is not None:
                yield conversation_of(line, place)
        elif "messages" in value:
            yield conversation_of(value, place)
        else:
            raise ImportFormatError(
                f"{place}: no known format (it has {keys_of(value)}); write {FORMAT}; or {WRITE_MESSAGES}; or {WRITE_PAIR}"
            )


def _values(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield (place, value) of each line; a JSON list counts as its items."""
    for place, value in read_objects(file):
        if isinstance(value, list):
            yield from ((f"{place}, item {number}", item) for number, item in enumerate(value))
        else:
            yield place, value


def _begins_with(path: Path, magic: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError as error:
        raise ImportFormatError(f"DATA_PATH {path} cannot be read: {error}") from error
