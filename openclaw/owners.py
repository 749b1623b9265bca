"""Which owner, session and turn an id names: the one scheme that sessions, feedback, rollouts and quotas share.

An owner is the name of a key. A child key is named ``PARENT/CHILD``; its parent sees what it owns, it does not see its
parent. The owner `LOCAL` has every client of a server without keys, and the key from the environment. A stored session
id names its owner: ``@OWNER:ID``. A session of `LOCAL` keeps the client's id, so that a single-user server shows the ids
that its clients sent. The owner of an episode's turns is a child of who created the episode: ``OWNER/episode-HEX``.

A completion's id is ``chatcmpl-`` and 32 hexadecimal digits. The turn of its first choice has the same id, that of choice
k has ``.k`` after it. A tool call's id has the digits of the completion, the choice (one digit) and the number of the call
(two hexadecimal digits or three). It consists of letters and digits only, because clients strip punctuation. An id of
another form names no turn, and whoever asks for a turn checks its owner.

Guarantees: different owners, or different ids of one owner, never have the same stored id, whatever characters a client
sends. Imports nothing of the product, so every room may import this one.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Any

LOCAL = ""
ENVIRONMENT_NAME = "environment"
"""Name of the key from the environment."""
NO_KEY_NAME = "local"
"""Name of every client when no key is configured."""
MARK = "@"
CHILD = "/"
EPISODE = "episode-"
"""How the id of an episode begins; no key of a keys file may be named like that."""
COMPLETION = "chatcmpl-"
TEXT_COMPLETION = "cmpl-"
RESPONSE = "resp_"
COMMAND_ANSWER = "command-"
"""Begins the id of an answer that the gateway itself gives, which is no turn."""
CALL = "call"
TURN_ID = re.compile(r"chatcmpl-[0-9a-f]{32}(?:\.[1-9])?")
CALL_ID = re.compile(r"call([0-9a-f]{32})([0-9])[0-9a-f]{2,3}")
NAMES_COMMAND_ANSWER = re.compile(rf"(?:{RESPONSE}|msg_){COMMAND_ANSWER}[0-9a-f]{{32,35}}")
SESSION_DIGITS = 12


def stored_id(owner: str, session_id: str) -> str:
    """Return the id under which the ledger keeps the session that ``owner`` calls ``session_id``."""
    if owner == LOCAL and not session_id.startswith(MARK):
        return session_id
    return f"{MARK}{owner}:{session_id}"


def split_id(stored: str) -> tuple[str, str]:
    """Return (owner, the owner's own id) of a stored session id."""
    if not stored.startswith(MARK):
        return LOCAL, stored
    owner, colon, session_id = stored[len(MARK) :].partition(":")
    return (owner, session_id) if colon else (LOCAL, stored)


def owner_of(stored: str) -> str:
    """Return the owner of a stored session id."""
    return split_id(stored)[0]


def owner_of_key(name: str) -> str:
    """Return the owner of what the clients of a key make, by the key's name."""
    return LOCAL if name in (ENVIRONMENT_NAME, NO_KEY_NAME) else name


def root(owner: str) -> str:
    """Return the owner at the top: of a child key its oldest parent, otherwise ``owner``."""
    return owner.partition(CHILD)[0]


def owns(owner: str, other: str) -> bool:
    """Return whether what belongs to ``other`` belongs to ``owner``: they are the same, or ``other`` is a child."""
    return owner == other or other.startswith(owner + CHILD)


def episode_owner(owner: str, episode: str) -> str:
    """Return the owner of the turns of an episode that ``owner`` created; of `LOCAL` it is ``/episode-HEX``."""
    return f"{owner}{CHILD}{episode}"


def episode_of(owner: str) -> str | None:
    """Return the episode whose turns an owner has, or None for any other owner."""
    _, child, name = owner.rpartition(CHILD)
    return name if child and name.startswith(EPISODE) else None


def metered_owner(owner: str) -> str:
    """Return for whom the tokens of an owner count: of an episode for who created it, otherwise for ``owner``."""
    return owner.partition(f"{CHILD}{EPISODE}")[0]


def prefixes(owner: str) -> tuple[str, str]:
    """Return how the stored ids of an owner other than `LOCAL` begin: its own, and its children's."""
    return f"{MARK}{owner}:", f"{MARK}{owner}{CHILD}"


def logged_name(session_id: str) -> str:
    """Return a session id's name in logs: the start of its SHA-256."""
    return hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:SESSION_DIGITS]


def new_completion_id(kind: str = COMPLETION) -> str:
    """Return a new completion's id; ``kind`` is its beginning."""
    return f"{kind}{uuid.uuid4().hex}"


def turn_id(completion: str, choice: int) -> str:
    """Return the id of the turn of a choice, counted from 0."""
    return f"{completion}.{choice}" if choice else completion


def response_id(completion: str) -> str:
    """Return what the Responses API calls a completion: ``resp_`` and its digits."""
    return RESPONSE + completion.removeprefix(COMPLETION)


def names_command_answer(name: str) -> bool:
    """Return whether the id of a response, or of an item of one, is of an answer that the gateway itself gave."""
    return NAMES_COMMAND_ANSWER.fullmatch(name) is not None


def turn_of_response(response: str) -> str:
    """Return the turn of a response's id; an id of another form stays as it is."""
    turn = COMPLETION + response.removeprefix(RESPONSE)
    return turn if response.startswith(RESPONSE) and TURN_ID.fullmatch(turn) else response


def tool_call_id(completion: str, choice: int, number: int) -> str:
    """Return the id of a tool call of a choice; both are counted from 0."""
    return f"{CALL}{completion.removeprefix(COMPLETION)}{choice}{number:02x}"


def issued_turn(message: dict[str, Any]) -> str:
    """Return the turn that an assistant message names: by its own id, or by its last tool call of ours; else empty."""
    own = message.get("id")
    if isinstance(own, str) and TURN_ID.fullmatch(own):
        return own
    for call in reversed(message.get("tool_calls") or []):
        if match := CALL_ID.fullmatch(str(call.get("id"))):
            return turn_id(f"{COMPLETION}{match.group(1)}", int(match.group(2)))
    return ""
