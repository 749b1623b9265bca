"""One conversation with the model: sends messages, keeps the replies, counts tokens and seconds.

Guarantees: every request is a side turn of a session of its own, so a learning server trains nothing on it. A reply's
thought is not part of its text. Errors that a person can act on are `ServerError` or `ContextError`; others pass.

Which replies are broken, whatever they say, is decided by the runtime's rules for turns that must not be trained
(`openclaw.judge.hygiene`), on text instead of tokens, because other servers send no tokens.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from groundwork.chat_messages import Message
from openclaw.judge.hygiene import is_repetitive

if TYPE_CHECKING:
    from openai import AsyncOpenAI


_WORD = re.compile(r"\w+|[^\w\s]")


def defect(text: str, finish_reason: str, calls: int) -> str | None:
    """Return why a reply is broken: ``empty``, ``truncated`` or ``repetitive``; None for a sound one.

    Args:
        text: of the reply, without its thought.
        finish_reason: as the server gave it.
        calls: number of tool calls in it.
    """
    if finish_reason == "length":
        return "truncated"
    if not text.strip():
        return None if calls else "empty"
    numbers: dict[str, int] = {}
    words = [numbers.setdefault(word.lower(), len(numbers)) for word in _WORD.findall(text)]
    if is_repetitive(words) or is_repetitive([ord(letter) for letter in text if not letter.isspace()]):
        return "repetitive"
    return None


THOUGHT_ENDS = "</think>"
TOO_LONG = ("context_length_exceeded", "context length", "maximum context", "context window")
UNREAD_CALL = "<tool_call"
"""A call in text: the server found none that can be read."""


class ServerError(RuntimeError):
    """The server refuses or does not answer. ``fatal``: every other request would fail as well."""

    def __init__(self, message: str, *, fatal: bool) -> None:
        super().__init__(message)
        self.fatal = fatal


class ContextError(RuntimeError):
    """A request does not fit the model's context."""


@dataclass(frozen=True)
class Policy:
    """A model behind a server, and how it is sampled; None leaves the choice to the server."""

    client: AsyncOpenAI
    model: str
    max_tokens: int
    temperature: float | None = None

    def talk(self, session: str) -> Talk:
        """Return a new conversation."""
        return Talk(self, session)


@dataclass(frozen=True, slots=True)
class Said:
    """A reply: its text without the thought, its tool calls as the API has them, and the defect if it is broken."""

    text: str
    calls: Sequence[Message]
    defect: str | None


@dataclass
class Talk:
    """The conversation of one case.

    Attributes:
        messages: everything said so far, as sent to the server.
        defects: of the replies, in order.
        malformed_calls: tool calls that the server could not read.
        seconds: spent waiting for replies.
        tokens: of all replies, as the server counts them.
    """

    policy: Policy
    session: str
    messages: list[Message] = field(default_factory=list[Message])
    defects: list[str] = field(default_factory=list[str])
    malformed_calls: int = 0
    seconds: float = 0.0
    tokens: int = 0

    async def ask(self, text: str, *, system: str | None = None, tools: Sequence[Any] = ()) -> Said:
        """Add the user's message and return the reply."""
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        self.messages.append({"role": "user", "content": text})
        return await self.reply(tools)

    async def reply(self, tools: Sequence[Any] = ()) -> Said:
        """Return the model's reply to the messages so far, and add it to them.

        Raises:
            ContextError: the conversation does not fit the model's context.
            ServerError: the server refuses, or does not answer.
        """
        began = time.monotonic()
        completion = await self._completion(tools)
        self.seconds += time.monotonic() - began
        self.tokens += completion.usage.completion_tokens if completion.usage else 0
        choice = completion.choices[0]
        calls: list[Message] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in choice.message.tool_calls or []
            if call.type == "function"
        ]
        text = (choice.message.content or "").rpartition(THOUGHT_ENDS)[2].strip()
        self.malformed_calls += text.count(UNREAD_CALL)
        said = Said(text, calls, defect(text, choice.finish_reason or "", len(calls)))
        self.messages.append({"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})})
        self.defects += [said.defect] if said.defect else []
        return said

    def result(self, call: Message, text: str) -> None:
        """Add what a tool returned."""
        self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})

    async def _completion(self, tools: Sequence[Any]) -> Any:
        from openai import APIConnectionError, APIStatusError

        policy = self.policy
        fields: dict[str, Any] = {} if policy.temperature is None else {"temperature": policy.temperature}
        if tools:
            fields["tools"] = list(tools)
        try:
            return await policy.client.chat.completions.create(
                model=policy.model,
                messages=list(self.messages),  # type: ignore[arg-type]
                max_tokens=policy.max_tokens,
                extra_headers={"X-Turn-Type": "side", "X-Session-Id": self.session},
                **fields,
            )
        except APIConnectionError as error:
            raise ServerError(f"{policy.client.base_url} does not answer: {error}", fatal=True) from error
        except APIStatusError as error:
            said = str(error.message)
            if error.status_code in (400, 413, 422) and any(sign in said.lower() for sign in TOO_LONG):
                raise ContextError(said) from error
            fatal = error.status_code in (401, 403, 404) or error.status_code >= 500 or error.status_code == 429
            raise ServerError(f"the server refused a request: {said}", fatal=fatal) from error
