"""Chat logs of other programs as conversations: lines with ``messages``, and pairs of a request and its response.

* ``{"messages": [...], "tools"?: [...]}`` is a whole conversation. Each assistant message is a turn; the messages up to the
  next one are its next state. ``"weight": 0`` on an assistant message keeps it out of training, as in OpenAI's files.
  Exports of ChatGPT and ShareGPT files become such lines (`openclaw.offline.reading`).
* ``{"request": {"messages", "tools"?}, "response": {"choices": [...]}}`` is one call, as a client or proxy logs it. The
  request may be named ``body`` or ``kwargs``, both may be wrapped in ``body``, and ``messages`` may stand beside
  ``response``. A later request that continues a reply gives its next state: the messages after it. A call that the logs of
  a conversation hold twice is one. A call that the server answered with an error is left out and counted.
  `openclaw.offline.other_forms` has the forms of requests and answers.

Guarantees: nothing is guessed. A message without a role, an unreadable content, the old ``function_call`` or an answer of an
unknown form is an error that names the line. Pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from groundwork.chat_messages import Message, is_trained
from openclaw.ledger.conversations import ImportedTurn, ImportFormatError
from openclaw.messages.fingerprint import conversation_digest, read_history
from openclaw.offline.other_forms import FailedCallError, read_answer, read_chat, read_request, read_tool_list
from openclaw.privacy.secret_finder import kept_id

REQUEST_NAMES = ("request", "body", "kwargs")
SESSION_NAMES = ("session_id", "conversation_id", "thread_id")
WRITE_MESSAGES = 'write {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}'
WRITE_PAIR = 'write {"request": {"messages": [...]}, "response": {"choices": [{"message": {...}}]}}'
DIGEST_BYTES = 8
FAILED_CALL = "log_failed_call"
"""Reason of a call that is left out: the server answered it with an error."""
ENDED = "finish_reason"
"""Key of an assistant message: ``length`` if it was cut off."""
OF_TRAINING = ("weight", "step_loss_mask", ENDED)
"""Keys of a message that say how it is trained, and are not part of it."""
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
        turns = [
            [*turn.messages, turn.response_message, *(turn.next_state or [])]
            for turn in (self.turns[0], self.turns[-1])
        ]
        return [*dict.fromkeys(name for messages in turns for name in _ids_of_beginnings(messages))]


def is_pair(value: Mapping[str, Any]) -> bool:
    """Return whether a line is a request with its response."""
    return "response" in value and ("messages" in value or any(name in value for name in REQUEST_NAMES))


def conversation_of(value: Mapping[str, Any], place: str) -> LoggedConversation:
    """Return the conversation of a line with ``messages``.

    Raises:
        ImportFormatError: naming the field.
    """
    given = value.get("messages")
    if not isinstance(given, list) or not given:
        raise ImportFormatError(f"{place}: messages is missing or empty; {WRITE_MESSAGES}")
    messages = read_chat(given, place)
    tools = read_tool_list(value.get("tools"), place)
    spoken = [position for position, message in enumerate(messages) if message["role"] == "assistant"]
    if not spoken:
        raise ImportFormatError(f"{place}: messages has no assistant message; {WRITE_MESSAGES}")
    clean = [{name: item for name, item in message.items() if name not in OF_TRAINING} for message in messages]
    turns: list[ImportedTurn] = []
    for number, position in enumerate(spoken):
        end = spoken[number + 1] if number + 1 < len(spoken) else len(messages)
        turns.append(
            ImportedTurn(
                kind="main",
                trainable=is_trained(messages[position]),
                messages=clean[:position],
                response_message=clean[position],
                next_state=clean[position + 1 : end] or None,
                tools=tools,
                finish_reason=messages[position].get(ENDED, "stop"),
            )
        )
    return LoggedConversation(place, kept_id(_stated_session(value, place) or _derived_id(clean)), turns)


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
    failed: int = 0
    """Calls that the server answered with an error."""

    def add(self, value: Mapping[str, Any], place: str) -> None:
        """Take the pair of a line.

        Raises:
            ImportFormatError: naming the field.
        """
        request = _request(value, place)
        messages = read_request(request, f"{place}: request")
        try:
            reply, finish_reason = read_answer(
                (value.get("error") and {"error": value["error"]}) or value["response"], place
            )
        except FailedCallError:
            self.failed += 1
            return
        session_id = _stated_session(value, place) or _stated_session(request, place)
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
            tools=read_tool_list(request.get("tools"), place),
            finish_reason=finish_reason,
        )
        digest = conversation_digest(messages, reply)
        pair = _Pair(kept_id(session_id or _derived_id([*messages, reply])), turn, place)
        if (number := self._by_digest.get(digest)) is not None and pair.repeats(self._pairs[number]):
            return
        self._by_digest[digest] = len(self._pairs)
        self._pairs.append(pair)

    def conversations(self) -> list[LoggedConversation]:
        """Return the conversations in the order of their first lines."""
        logged_conversations: dict[str, LoggedConversation] = {}
        for pair in self._pairs:
            conversation = logged_conversations.setdefault(
                pair.session_id, LoggedConversation(pair.place, pair.session_id, [])
            )
            conversation.turns.append(pair.turn)
        return list(logged_conversations.values())

    def _answered(self, messages: Sequence[Message]) -> tuple[_Pair, int] | None:
        """Return the earlier pair whose reply is the last one in a request, and the reply's position."""
        for reply in read_history(messages).replies[:1]:
            if (number := self._by_digest.get(reply.conversation)) is not None:
                return self._pairs[number], reply.position
        return None


def _request(value: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    name = next((name for name in REQUEST_NAMES if name in value), None)
    request = value if name is None else value[name]
    if (
        isinstance(request, dict)
        and not {"messages", "input"} & request.keys()
        and isinstance(request.get("body"), dict)
    ):
        request = request["body"]
    if not isinstance(request, dict):
        raise ImportFormatError(f"{place}: {name} is not an object; {WRITE_PAIR}")
    return request


def _stated_session(value: Mapping[str, Any], place: str) -> str | None:
    metadata = value.get("metadata")
    for source in (value, metadata if isinstance(metadata, dict) else {}):
        for name in SESSION_NAMES:
            stated = source.get(name)
            if stated is None or stated == "":
                continue
            if isinstance(stated, bool) or not isinstance(stated, str | int):
                raise ImportFormatError(
                    f"{place}: {name} is {str(stated)[:100]!r}; write a text or a number, or leave it out"
                )
            return str(stated)
    return None


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
