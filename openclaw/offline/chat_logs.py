"""Chat logs of other programs as conversations: lines with ``messages``, and pairs of a request and its response.

* ``{"messages": [...], "tools"?: [...]}`` is a whole conversation. Each assistant message is a turn; the messages up to the
  next one are its next state. ``"weight": 0`` on an assistant message keeps it out of training, as in OpenAI's files.
* ``{"request": {"messages", "tools"?}, "response": {"choices": [...]}}`` is one call, as a client or proxy logs it. The
  request may be named ``body`` or ``kwargs``, both may be wrapped in ``body``, and ``messages`` may stand beside
  ``response``. A later request that continues a reply gives its next state: the messages after it. A call that the logs of
  a conversation hold twice is one.

Guarantees: nothing is guessed. A message without a role, an unreadable content or the old ``function_call`` is an error
that names the line. Pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from openclaw.ledger.conversations import CUT_OFF
from openclaw.ledger.importing import ImportedTurn, ImportFormatError
from openclaw.ledger.kept_ids import kept_id
from openclaw.messages.fingerprint import conversation_digest, read_history
from openclaw.messages.text import content_text

Message = dict[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool")
REQUEST_NAMES = ("request", "body", "kwargs")
SESSION_NAMES = ("session_id", "conversation_id", "thread_id")
WRITE_MESSAGES = 'write {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}'
WRITE_PAIR = 'write {"request": {"messages": [...]}, "response": {"choices": [{"message": {...}}]}}'
DIGEST_BYTES = 8
DERIVED = "log-"
"""How the id of a conversation begins that states none."""


@dataclass(frozen=True)
class LoggedConversation:
    """A conversation and the place of its first line."""

    place: str
    session_id: str
    turns: list[ImportedTurn]

    def beginnings(self) -> list[str]:
        """Return the ids that shorter versions of a conversation without a name have, and its own, the shortest first."""
        if not self.session_id.startswith(DERIVED):
            return []
        told = [
            [*turn.messages, turn.response_message, *(turn.next_state or [])]
            for turn in (self.turns[0], self.turns[-1])
        ]
        return [*dict.fromkeys(name for messages in told for name in _ids_of_beginnings(messages))]


def is_pair(value: Mapping[str, Any]) -> bool:
    """Return whether a line is a request with its response."""
    return "response" in value and ("messages" in value or any(name in value for name in REQUEST_NAMES))


def conversation_of(value: Mapping[str, Any], place: str) -> LoggedConversation:
    """Return the conversation of a line with ``messages``.

    Raises:
        ImportFormatError: naming the field.
    """
    messages = _messages(value.get("messages"), place)
    tools = _tools(value, place)
    spoken = [position for position, message in enumerate(messages) if message["role"] == "assistant"]
    if not spoken:
        raise ImportFormatError(f"{place}: messages has no assistant message; {WRITE_MESSAGES}")
    clean = [{name: item for name, item in message.items() if name != "weight"} for message in messages]
    turns: list[ImportedTurn] = []
    for number, position in enumerate(spoken):
        end = spoken[number + 1] if number + 1 < len(spoken) else len(messages)
        turns.append(
            ImportedTurn(
                kind="main",
                trainable=messages[position].get("weight", 1) != 0,
                messages=clean[:position],
                response_message=clean[position],
                next_state=clean[position + 1 : end] or None,
                tools=tools,
            )
        )
    return LoggedConversation(place, _session_id(value, clean), turns)


@dataclass
class _Pair:
    session_id: str
    turn: ImportedTurn
    place: str

    def repeats(self, earlier: _Pair) -> bool:
        """Return whether this is a call that ``earlier`` has, whatever followed it."""
        then = replace(earlier.turn, next_state=None)
        return (self.session_id, self.turn) == (earlier.session_id, then)


@dataclass
class Pairs:
    """Joins pairs of requests and responses to conversations, in the order of the log."""

    _by_digest: dict[bytes, int] = field(default_factory=dict[bytes, int])
    _pairs: list[_Pair] = field(default_factory=list[_Pair])

    def add(self, value: Mapping[str, Any], place: str) -> None:
        """Take the pair of a line.

        Raises:
            ImportFormatError: naming the field.
        """
        request = _request(value, place)
        messages = _messages(request.get("messages"), f"{place}: request")
        reply, finish_reason = _reply(value["response"], place)
        session_id = _stated_session(value) or _stated_session(request)
        if before := self._answered(messages):
            pair, position = before
            if pair.turn.next_state is None and messages[position + 1 :]:
                pair.turn = replace(pair.turn, next_state=messages[position + 1 :])
            session_id = session_id or pair.session_id
        turn = ImportedTurn(
            kind="main",
            trainable=True,
            messages=messages,
            response_message=reply,
            next_state=None,
            tools=_tools(request, place),
            finish_reason=CUT_OFF if finish_reason == CUT_OFF else "stop",
        )
        digest = conversation_digest(messages, reply)
        pair = _Pair(kept_id(session_id or _derived_id([*messages, reply])), turn, place)
        if (number := self._by_digest.get(digest)) is not None and pair.repeats(self._pairs[number]):
            return
        self._by_digest[digest] = len(self._pairs)
        self._pairs.append(pair)

    def conversations(self) -> list[LoggedConversation]:
        """Return the conversations in the order of their first lines."""
        found: dict[str, LoggedConversation] = {}
        for pair in self._pairs:
            conversation = found.setdefault(pair.session_id, LoggedConversation(pair.place, pair.session_id, []))
            conversation.turns.append(pair.turn)
        return list(found.values())

    def _answered(self, messages: Sequence[Message]) -> tuple[_Pair, int] | None:
        """Return the earlier pair whose reply is the last one in a request, and the reply's position."""
        for reply in read_history(messages).replies[:1]:
            if (number := self._by_digest.get(reply.conversation)) is not None:
                return self._pairs[number], reply.position
        return None


def _request(value: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    name = next((name for name in REQUEST_NAMES if name in value), None)
    found = value if name is None else value[name]
    if isinstance(found, dict) and "messages" not in found and isinstance(found.get("body"), dict):
        found = found["body"]
    if not isinstance(found, dict):
        raise ImportFormatError(f"{place}: {name} is not an object; {WRITE_PAIR}")
    return found


def _reply(response: Any, place: str) -> tuple[Message, str | None]:
    """Return the assistant message of a response, and why it ended."""
    if isinstance(response, str):
        return {"role": "assistant", "content": response}, None
    if isinstance(response, dict) and isinstance(response.get("body"), dict):
        response = response["body"]
    if not isinstance(response, dict):
        raise ImportFormatError(f"{place}: response is neither a text nor an object; {WRITE_PAIR}")
    reason = None
    if "choices" in response:
        choices = response["choices"]
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise ImportFormatError(
                f"{place}: response.choices is not one choice; write a line for each choice, or only the one that went on"
            )
        reason, response = choices[0].get("finish_reason"), choices[0].get("message")
    if not isinstance(response, dict):
        raise ImportFormatError(f"{place}: the response has no message; {WRITE_PAIR}")
    [message] = _messages([{"role": "assistant", **response}], f"{place}: response")
    return message, reason


def _messages(value: Any, place: str) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise ImportFormatError(f"{place}: messages is missing or empty; {WRITE_MESSAGES}")
    for number, message in enumerate(value):
        where = f"{place}, message {number}"
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            role = message.get("role") if isinstance(message, dict) else message
            raise ImportFormatError(f"{where}: the role is {role!r}; write one of {', '.join(ROLES)}")
        if message.get("function_call"):
            raise ImportFormatError(f"{where}: function_call is the old form; write tool_calls")
        try:
            content_text(message.get("content"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ImportFormatError(f"{where}: content is not a text, a list of parts or null ({error})") from error
        if not _readable_calls(message.get("tool_calls")):
            raise ImportFormatError(
                f'{where}: tool_calls: write [{{"type": "function", "function": {{"name", "arguments"}}}}]'
            )
    return value


def _readable_calls(calls: Any) -> bool:
    if calls is None:
        return True
    return isinstance(calls, list) and all(
        isinstance(call, dict)
        and isinstance(call.get("function"), dict)
        and isinstance(call["function"].get("name"), str)
        for call in calls
    )


def _tools(value: Mapping[str, Any], place: str) -> list[dict[str, Any]] | None:
    tools = value.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise ImportFormatError(
            f"{place}: tools is not a list of objects; write the tools of the request, or leave it out"
        )
    return tools or None


def _stated_session(value: Mapping[str, Any]) -> str | None:
    metadata = value.get("metadata")
    for place in (value, metadata if isinstance(metadata, dict) else {}):
        for name in SESSION_NAMES:
            if isinstance(place.get(name), str) and place[name]:
                return place[name]
    return None


def _session_id(value: Mapping[str, Any], messages: Sequence[Message]) -> str:
    return kept_id(_stated_session(value) or _derived_id(messages))


def _derived_id(messages: Sequence[Message]) -> str:
    """Return the id of a conversation that states none."""
    return _ids_of_beginnings(messages)[-1]


def _ids_of_beginnings(messages: Sequence[Message]) -> list[str]:
    """Return the ids of a conversation that states none after each of its messages."""
    ids: list[str] = []
    digest = blake2b(digest_size=DIGEST_BYTES)
    for message in messages:
        digest.update(f"{', ' if ids else '['}{json.dumps(message, sort_keys=True)}".encode())
        whole = digest.copy()
        whole.update(b"]")
        ids.append(f"{DERIVED}{whole.hexdigest()}")
    return ids
