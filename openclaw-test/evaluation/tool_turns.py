"""A conversation in which the model calls tools until it replies without a call.

Guarantees: each call gets one result, in order. A malformed call gets what to write as its result. The number of replies and of
calls is bounded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.talk import Said, Talk
from groundwork.chat_messages import Message

MOST_CALLS = 32


class MalformedCall(ValueError):
    """A call that nobody can carry out; the text tells the model what to write."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended: the last reply, the number of malformed calls, and the bound that ended it, if one did."""

    said: Said
    malformed: int
    bound: str = ""


async def converse(
    talk: Talk, said: Said, tools: Sequence[Any], carry_out: Callable[[Message], Awaitable[str]], most_replies: int
) -> Ended:
    """Carry out the calls of a reply and ask again, until a reply has none.

    Args:
        talk: the conversation so far.
        said: its last reply.
        tools: in OpenAI's format.
        carry_out: returns a call's result, or raises `MalformedCall`.
        most_replies: bound on further replies.
    """
    malformed = calls = replies = 0
    while said.calls:
        for call in said.calls:
            calls += 1
            if calls > MOST_CALLS:
                return Ended(said, malformed + talk.malformed_calls, "too_many_calls")
            try:
                text = await carry_out(call)
            except MalformedCall as error:
                malformed += 1
                text = f"error: {error}"
            talk.result(call, text)
        if replies == most_replies:
            return Ended(said, malformed + talk.malformed_calls, "too_many_replies")
        replies += 1
        said = await talk.reply(tools)
    return Ended(said, malformed + talk.malformed_calls)
