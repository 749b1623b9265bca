"""Digests that identify a reply and the conversation before it when a client sends them back.

Guarantees: the digests ignore what clients change: tool-call ids, white space, the composition of accents (Unicode's
NFC), the formatting of JSON arguments (5.0 is 5, as JavaScript writes it), thoughts (in a field of their own or
before the reply), internal context, additions to the user's words (date, Runtime line), the wording of a heartbeat,
and cache hints. A string equals a list of its one text. System messages may hold the time of day, so they have a
digest of their own. Everything else counts, and so does the owner: no digest of a conversation equals another
owner's. Two replies that differ in what is ignored are told apart by `CarriedReply.exact`, where the client kept it.
`routing_key` tells a router the conversation; it needs no session and is the same for all its turns. Pure functions.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import orjson

from groundwork.chat_messages import Message, pictures_of, read_arguments
from openclaw.messages.classify import is_internal, message_side_kind, user_words
from openclaw.messages.text import content_text
from openclaw.owners import LOCAL, issued_turn

DIGEST_BYTES = 16
ROUTING_KEY_BYTES = 12
HEARTBEAT_WORDS = "[heartbeat]"
LONG_REPLY = 100
MOST_EXACT = 2**53
"""JavaScript rounds larger whole numbers."""
WHITE_SPACE = bytes(character for character in range(128) if chr(character).isspace())
OTHER_SPACES = tuple(
    (pattern[0], re.compile(pattern, re.DOTALL))
    for pattern in (
        b"\xc2[\x85\xa0]",
        b"\xe1\x9a\x80",
        b"\xe2(?:\x80[\x80-\x8b\xa8\xa9\xaf]|\x81\x9f)",
        b"\xe3\x80\x80",
        b"\xef\xbb\xbf",
    )
)
"""All other white space of Unicode and two marks without width, in UTF-8, by their first byte."""
THOUGHTS = re.compile(
    r"\s*(?:<(?P<tag>think|thinking|thought|reasoning)>.*?(?:</(?P=tag)>|\Z)"
    r'|<details type="reasoning"[^>]*>.*?(?:</details>|\Z)'
    r"|:::thinking\n.*?(?:\n:::|\Z))",
    re.DOTALL,
)
"""A thought before a reply, as chat clients keep it in the reply's text."""


@dataclass(frozen=True, slots=True)
class CarriedReply:
    """An assistant message in a request.

    Attributes:
        position: its index in the messages.
        reply: digest of the message.
        before: digest of the conversation that it answered.
        conversation: digest of the conversation up to and with it.
        trace: identifies it after the conversation before it was rewritten, see `trace_digest`.
        exact: hash of its content as it stands, see `exact_hash`.
        turn: the turn that it names by an id of ours, see `openclaw.owners.issued_turn`; else empty.
    """

    position: int
    reply: bytes
    before: bytes
    conversation: bytes
    trace: bytes
    exact: int
    turn: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """The digests of a request.

    Attributes:
        system: of its leading system messages.
        asked: of the whole conversation.
        last: of its last message.
        replies: its assistant messages, last one first.
        owner: whose request it is.
    """

    system: bytes
    asked: bytes
    last: bytes
    replies: tuple[CarriedReply, ...]
    owner: str = LOCAL


def read_history(messages: Sequence[Message], owner: str = LOCAL) -> History:
    """Return the digests of the messages of a request of ``owner``."""
    system = b""
    conversation = start = owner_digest(owner)
    last = b""
    replies = []
    for position, message in enumerate(messages):
        role = message.get("role")
        if role in ("system", "developer"):
            if conversation == start:
                system = join(system, message_digest(message))
            continue
        if is_internal(message):
            continue
        digest = message_digest(message)
        before, conversation = conversation, join(conversation, digest)
        if role == "assistant":
            trace = trace_digest(last, message, digest, owner)
            exact = exact_hash(message)
            replies.append(CarriedReply(position, digest, before, conversation, trace, exact, issued_turn(message)))
        last = digest
    return History(system, conversation, last, tuple(reversed(replies)), owner)


def message_digest(message: Message) -> bytes:
    """Return the digest of a message: role, text and tool calls."""
    role = message.get("role", "")
    if role == "developer":
        role = "system"
    if role == "user":
        text = HEARTBEAT_WORDS if message_side_kind(message) == "heartbeat" else user_words(message)
    else:
        text = content_text(message.get("content"))
    letters = _letters(_without_thoughts(text) if role == "assistant" else text)
    identity = f"{role} {len(letters)} ".encode() + letters
    if calls := message.get("tool_calls"):
        functions = [call.get("function", {}) for call in calls]
        named = [[function.get("name"), _arguments(function.get("arguments"))] for function in functions]
        identity += json.dumps(named, sort_keys=True).encode()
    if pictures := pictures_of(message):
        identity += json.dumps(pictures).encode()
    return blake2b(identity, digest_size=DIGEST_BYTES).digest()


def _letters(text: str) -> bytes:
    """Return what is compared of a text: its characters without white space."""
    if text.isascii():
        return text.encode().translate(None, WHITE_SPACE)
    letters = unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass").translate(None, WHITE_SPACE)
    for first, space in OTHER_SPACES:
        if first in letters:
            letters = space.sub(b"", letters)
    return letters


def _without_thoughts(text: str) -> str:
    """Return a reply's text without the thoughts before it."""
    end = 0
    while thought := THOUGHTS.match(text, end):
        end = thought.end()
    return text[end:]


def exact_hash(message: Message) -> int:
    """Return a hash of a reply's content, which tells replies with one digest apart; it holds in this process only."""
    return hash(content_text(message.get("content")))


def reply_digest(reply: Message) -> bytes:
    """Return the digest of a reply's message."""
    return message_digest({**reply, "role": "assistant"})


def conversation_digest(messages: Sequence[Message], reply: Message, owner: str = LOCAL) -> bytes:
    """Return the digest of a conversation of ``owner`` that ends in ``reply``."""
    return join(read_history(messages, owner).asked, reply_digest(reply))


@lru_cache(1024)
def owner_digest(owner: str) -> bytes:
    """Return what the digests of an owner's conversations begin with; nothing for `LOCAL`."""
    return b"" if owner == LOCAL else blake2b(f"owner {owner}".encode(), digest_size=DIGEST_BYTES).digest()


def trace_digest(last: bytes, message: Message, reply: bytes, owner: str = LOCAL) -> bytes:
    """Return a reply's digest across conversations: of a long reply alone, otherwise with the message before it.

    Args:
        last: digest of the message before it.
        message: the reply.
        reply: its digest.
        owner: of the conversation.
    """
    text = _without_thoughts(content_text(message.get("content")))
    trace = reply if len(text) >= LONG_REPLY else join(last, reply)
    return trace if owner == LOCAL else join(owner_digest(owner), trace)


def system_digest(first: Message | None) -> bytes:
    """Return ``History.system`` of a request whose only system message may be its first one, ``first``."""
    return read_history([first]).system if first else b""


def messages_digest(messages: Iterable[Message], before: bytes = b"") -> bytes:
    """Return the digest of a list of messages, or of the conversation ``before`` extended by them."""
    digest = before
    for message in messages:
        digest = join(digest, message_digest(message))
    return digest


def join(conversation: bytes, message: bytes) -> bytes:
    """Return the digest of ``conversation`` extended by ``message``; both are digests."""
    return blake2b(conversation + message, digest_size=DIGEST_BYTES).digest()


def routing_key(messages: Sequence[Any]) -> str:
    """Return a digest of the messages up to the first user message, which all later turns share."""
    first = next((n for n, message in enumerate(messages) if message.get("role") == "user"), len(messages) - 1)
    return blake2b(orjson.dumps(list(messages[: first + 1])), digest_size=ROUTING_KEY_BYTES).hexdigest()


def _arguments(arguments: object) -> object:
    if isinstance(arguments, str):
        arguments = read_arguments(arguments) if arguments.strip() else {}
    return _as_javascript_reads(arguments)


def _as_javascript_reads(value: Any) -> Any:
    """Return a JSON value with each number as a client sees it whose language has no integers: 5.0 is 5, and 1e400 null."""
    if isinstance(value, dict):
        return {name: _as_javascript_reads(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_as_javascript_reads(each) for each in value]
    if isinstance(value, int) and abs(value) > MOST_EXACT:
        try:
            value = float(value)
        except OverflowError:
            return None
    if isinstance(value, float) and math.isinf(value):
        return None
    return int(value) if isinstance(value, float) and value.is_integer() else value
