"""The ids that the gateway gives to replies and tool calls, from which it knows a turn again.

A completion's id is ``chatcmpl-`` and 32 hexadecimal digits. The turn of its first choice has the same id, that of choice
k has ``.k`` after it. A tool call's id has the digits of the completion, the choice (one digit) and the number of the
call (two hexadecimal digits or three). It consists of letters and digits only, because clients strip punctuation.

Guarantees: pure functions. An id of another form names no turn, and whoever asks for a turn checks its owner.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

COMPLETION = "chatcmpl-"
CALL = "call"
TURN_ID = re.compile(r"chatcmpl-[0-9a-f]{32}(?:\.[1-9])?")
CALL_ID = re.compile(r"call([0-9a-f]{32})([0-9])[0-9a-f]{2,3}")


def new_completion_id() -> str:
    """Return a new completion's id."""
    return f"{COMPLETION}{uuid.uuid4().hex}"


def turn_id(completion: str, choice: int) -> str:
    """Return the id of the turn of a choice, counted from 0."""
    return f"{completion}.{choice}" if choice else completion


def tool_call_id(completion: str, choice: int, number: int) -> str:
    """Return the id of a tool call of a choice; both are counted from 0."""
    return f"{CALL}{completion.removeprefix(COMPLETION)}{choice}{number:02x}"


def issued_turn(message: dict[str, Any]) -> str:
    """Return the turn that an assistant message names: by its own id, or by its last tool call of ours; else empty."""
    own = message.get("id")
    if isinstance(own, str) and TURN_ID.fullmatch(own):
        return own
    for call in reversed(message.get("tool_calls") or []):
        if found := CALL_ID.fullmatch(str(call.get("id"))):
            return turn_id(f"{COMPLETION}{found.group(1)}", int(found.group(2)))
    return ""
