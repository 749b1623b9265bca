"""Messages, tools, requests and answers of other interfaces, in the form of OpenAI's chat completions.

Reads OpenAI's chat completions and Responses, Anthropic's messages, and Ollama's chat. Text parts of every name are text.
Thoughts become ``reasoning_content``, a ``tool_use`` or ``function_call`` becomes a tool call, and a tool's result becomes a
message of role ``tool``. A part that is not text stays as it is.

Guarantees: nothing is guessed. An answer of another form is an error that says which forms are read, never an empty reply.
The same words have the same form in an answer and in the request that carries it on. Pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from groundwork.chat_messages import Message, MessageError, check_messages, is_trained, known_fields
from openclaw.ledger.conversations import CUT_OFF, ImportFormatError
from openclaw.messages.preview import harmless, preview

TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Types of text parts, and the key of their text."""
THOUGHTS = {"thinking": "thinking", "reasoning": "text", "redacted_thinking": None}
MEDIA = frozenset(
    {"image", "image_url", "input_image", "image_asset_pointer", "video", "video_url", "audio", "audio_url", "input_audio"}
    | {"audio_asset_pointer", "real_time_user_audio_video_asset_pointer", "file", "input_file", "document", "container_upload"}
)  # fmt: skip
SPOKEN_FIELDS = frozenset(
    {"role", "content", "tool_calls", "reasoning_content", "reasoning", "thinking", "refusal", "function_call"}
)
CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded", "content_filter"})
"""Reasons for which an answer ended before its own end."""
READ = "the answer of OpenAI's chat completions or Responses, of Anthropic's messages, or of Ollama's chat"
WRITE_ANSWER = '"response": {"choices": [{"message": {"role": "assistant", "content": "..."}}]}'
KEYS_SHOWN = 100


class FailedCallError(ImportFormatError):
    """The server answered a call with an error, so there is no reply."""


def keys_of(value: Mapping[str, Any]) -> str:
    """Return the keys of an object as an error shows them."""
    return preview(harmless(", ".join(sorted(map(str, value))[:6])), KEYS_SHOWN) or "nothing"


def read_chat(value: Any, place: str) -> list[Message]:
    """Return a list of messages of any known form as checked messages.

    Raises:
        ImportFormatError: naming the message.
    """
    messages: list[Message] = []
    for number, message in enumerate(value):
        try:
            result = list(_as_messages(message)) if isinstance(message, dict) else [message]
            for check_message in check_messages(result, parts=None):
                is_trained(check_message)
        except MessageError as error:
            raise ImportFormatError(f"{place}, message {number}: {_after_number(str(error))}") from error
        messages += result
    return messages


def _after_number(text: str) -> str:
    return text.partition(": ")[2] if text.startswith("message ") else text


def _as_messages(message: Message) -> Iterator[Message]:
    """Yield a message in OpenAI's form, after the tool results that it holds."""
    plain = dict(message)
    for name in ("thinking", "reasoning"):  # Ollama's and other servers' names
        if isinstance(plain.get(name), str):
            thought = plain.pop(name)
            plain.setdefault("reasoning_content", thought)
    if plain.get("content") is None and isinstance(plain.get("refusal"), str) and plain["refusal"]:
        plain["content"] = plain["refusal"]
    plain.pop("refusal", None)
    if isinstance(plain.get("images"), list) and plain["images"] and isinstance(plain.get("content"), str | None):
        text = [{"type": "text", "text": plain["content"]}] if plain.get("content") else []
        plain["content"] = [*text, *({"type": "image"} for _ in plain.pop("images"))]
    if not isinstance(plain.get("content"), list):
        yield plain
        return
    parts: list[Any] = []
    thoughts: list[str] = []
    calls = list(plain.get("tool_calls") or []) if isinstance(plain.get("tool_calls"), list | None) else []
    results: list[Message] = []
    for part in plain["content"]:
        kind = part.get("type", "text") if isinstance(part, dict) else None
        if kind == "tool_use":
            calls.append(_call(part.get("id"), part.get("name"), part.get("input")))
        elif kind == "tool_result":
            content = part.get("content")
            results.append({"role": "tool", "tool_call_id": part.get("tool_use_id"), "content": _texts(content)})
        elif kind in THOUGHTS:
            text = part.get(THOUGHTS[kind]) if THOUGHTS[kind] else None
            thoughts += [text] if isinstance(text, str) else []
        else:
            parts += _texts([part])
    plain["content"] = parts
    if thoughts:
        plain.setdefault("reasoning_content", "\n".join(thoughts))
    if calls:
        plain["tool_calls"] = calls
    yield from results
    if parts or calls or thoughts or not results:
        yield plain


def _texts(content: Any) -> Any:
    """Return a content whose parts of text have the type ``text`` and nothing else; other parts stay."""
    if not isinstance(content, list):
        return content
    return [
        {"type": "text", "text": part.get(TEXTS[part["type"]])}
        if isinstance(part, dict) and part.get("type") in TEXTS
        else part
        for part in content
    ]


def _call(identity: Any, name: Any, arguments: Any) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments if arguments is not None else {})
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": text}}


def read_tool_list(value: Any, place: str) -> list[dict[str, Any]] | None:
    """Return tools of any known form; None without any.

    Raises:
        ImportFormatError: it is not a list of objects.
    """
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value or "[]")
        except (ValueError, RecursionError):
            value = None
    if not (isinstance(value, list) and all(isinstance(tool, dict) for tool in value)):
        raise ImportFormatError(
            f"{place}: tools is not a list of objects; write the tools of the request, or leave it out"
        )
    return [_as_tool(tool) for tool in value] or None


def _as_tool(tool: dict[str, Any]) -> dict[str, Any]:
    if "function" in tool or not isinstance(tool.get("name"), str):
        return tool
    function = known_fields(tool, {"name", "description", "parameters", "strict"})
    if "input_schema" in tool:
        function["parameters"] = tool["input_schema"]
    return {"type": "function", "function": function}


def read_request(request: Mapping[str, Any], place: str) -> list[Message]:
    """Return the messages of a request, its system prompt first.

    Raises:
        ImportFormatError: naming the message or field.
    """
    if "messages" not in request and "input" in request:
        if request.get("previous_response_id"):
            raise ImportFormatError(
                f"{place}: previous_response_id names messages that the log lacks; log requests whose input is whole"
            )
        given = request["input"]
        messages = [{"role": "user", "content": given}] if isinstance(given, str) else _from_items(given, place)
        system = request.get("instructions")
    else:
        messages, system = request.get("messages"), request.get("system")
    if not isinstance(messages, list) or not messages:
        raise ImportFormatError(
            f'{place}: messages is missing or empty; write {{"request": {{"messages": [...]}}, {WRITE_ANSWER}}}'
        )
    return read_chat([*([{"role": "system", "content": system}] if system else []), *messages], place)


def read_answer(response: Any, place: str) -> tuple[Message, str]:
    """Return the assistant message of a response, and ``length`` if it was cut off, else ``stop``.

    Raises:
        FailedCallError: the response is an error.
        ImportFormatError: it has no known form, or holds no single reply.
    """
    if isinstance(response, str):
        return {"role": "assistant", "content": response}, "stop"
    if isinstance(response, dict) and isinstance(response.get("body"), dict):
        response = response["body"]
    if not isinstance(response, dict):
        raise ImportFormatError(f"{place}: response is neither a text nor an object; write {WRITE_ANSWER}")
    if response.get("error") and not {"choices", "message", "content"} & response.keys():
        raise FailedCallError(f"{place}: the response is an error")
    message, reason = _spoken(response, place)
    if not isinstance(message, dict) or not {"content", "tool_calls"} & message.keys():
        raise ImportFormatError(f"{place}: the response has no message with a content; write {WRITE_ANSWER}")
    if message.get("role", "assistant") != "assistant":
        raise ImportFormatError(
            f"{place}: the response is a message of role {str(message['role'])[:KEYS_SHOWN]!r}; a reply is the assistant's"
        )
    messages = read_chat([{"role": "assistant", **message}], f"{place}: response")
    if len(messages) != 1 or messages[0]["role"] != "assistant":
        raise ImportFormatError(f"{place}: the response holds a tool's result; a reply is one assistant message")
    return messages[0], CUT_OFF if reason in CUT else "stop"


def _spoken(response: Mapping[str, Any], place: str) -> tuple[Any, Any]:
    """Return the message of an answer, and why it ended."""
    if "choices" in response:
        choices = response["choices"]
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise ImportFormatError(
                f"{place}: response.choices is not one choice; write a line for each choice, or only the one that went on"
            )
        return choices[0].get("message"), choices[0].get("finish_reason")
    if "message" in response:
        return response["message"], response.get("done_reason")
    if isinstance(response.get("output"), list):
        items = _from_items(response["output"], place)
        details = response.get("incomplete_details")
        return items[0] if len(items) == 1 else None, details.get("reason") if isinstance(details, dict) else None
    if {"content", "tool_calls"} & response.keys():
        return known_fields(response, SPOKEN_FIELDS), response.get("stop_reason")
    raise ImportFormatError(
        f"{place}: the response has no known form (it has {keys_of(response)}); write {READ}, or {WRITE_ANSWER}"
    )


def _from_items(items: Any, place: str) -> list[Any]:
    """Return the messages of a Responses input or output: what the assistant says and calls in a row is one message."""
    if not isinstance(items, list):
        raise ImportFormatError(f"{place}: input is neither a text nor a list of items; log it as it was sent")
    told: list[Any] = []
    spoken: Message | None = None
    for number, item in enumerate(items):
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "reasoning":
            continue
        if kind == "function_call_output":
            told.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
            spoken = None
        elif kind == "message" and item.get("role") != "assistant":
            told.append({name: part for name, part in item.items() if name != "type"})
            spoken = None
        elif kind in ("message", "function_call"):
            if spoken is None:
                spoken = {"role": "assistant", "content": []}
                told.append(spoken)
            if kind == "message":
                spoken["content"] += _listed(item.get("content"))
            else:
                call = _call(item.get("call_id"), item.get("name"), item.get("arguments"))
                spoken.setdefault("tool_calls", []).append(call)
        else:
            raise ImportFormatError(
                f"{place}, item {number}: items of type {str(kind)[:KEYS_SHOWN]!r} are not read; leave the call out of the log"
            )
    return told


def _listed(content: Any) -> Sequence[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
