"""Calls in text, as ReTool writes them (Feng et al. 2025, arXiv:2504.11536): observations are appended to one long reply.

The model writes ``<tool_call>`` with JSON, or ``<code>`` with Python, and stops there. What the environment answers follows between
``<interpreter>`` tags, without a new role, and the model goes on. A reply without a call is the last one.

Guarantees: a prompt is the first prompt and the ids of all that followed, so an episode is one sample unless something is left out. Sampled text is
never tokenised; observations are, once, and they cannot write control tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.rollout.actions import Action, Malformed
from agentrl.rollout.prompts import Reply, Speech, Tools
from groundwork.chat_messages import Message

CALL = re.compile(r"<tool_call>(.*?)</tool_call>|<code>(.*?)</code>", re.DOTALL)
FENCE = re.compile(r"\A\s*```[a-z]*\n(.*?)```\s*\Z", re.DOTALL)
STOPS = ("</tool_call>", "</code>")
OPEN = re.compile(r"<tool_call>|<code>")


class RetoolText:
    """See `agentrl.rollout.actions.Form`."""

    stops: Sequence[str] = STOPS
    appended = True

    def actions(self, reply: Reply) -> list[Action]:
        """See `Form`."""
        text = str(reply.message["content"])
        found = CALL.search(text)
        if found is None:
            if OPEN.search(text):
                raise Malformed("a call has no end; write </tool_call> or </code> after it")
            return [Action({"text": text.strip()})]
        if found[1] is None:
            fenced = FENCE.match(found[2])
            code = fenced[1] if fenced else found[2].removeprefix("\n")
            return [Action({"tool": "code_interpreter", "arguments": {"code": code}})]
        return [Action(_called(found[1]))]

    def answer(self, text: str, call_id: str | None) -> Message:
        """See `Form`."""
        return {"role": "tool", "content": text}


@dataclass
class AppendedConversation:
    """Messages, and the ids of those that follow the first prompt; see `agentrl.rollout.prompts.Conversation`."""

    speech: Speech
    messages: list[Message]
    keywords: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tools: Tools = ()
    rendered: int = 0

    def __post_init__(self) -> None:
        self._first = len(self.messages)
        self._begin = self.speech.renderer.render(self.messages, (), self.keywords)
        self._ids: list[list[int]] = []

    def prompt(self) -> list[int]:
        """Return the ids of the next prompt."""
        return [*self._begin, *(each for ids in self._ids for each in ids)]

    def read(self, prompt_ids: Sequence[int], ids: Sequence[int], turn: int) -> Reply:
        """Return a reply as a message: all of its text, thoughts and calls included."""
        return Reply({"role": "assistant", "content": self.speech.text(ids)}, 0, False)

    def length_of(self, kept: Sequence[tuple[int | None, Message]]) -> int:
        """Return the number of tokens of the prompt after `replace`."""
        return len(self._begin) + sum(map(len, self._moved(kept)))

    def said(self, prompt_ids: list[int], sampled: list[int], reply: Reply) -> None:
        """Add a reply."""
        self.messages.append(reply.message)
        self._ids.append(list(sampled))

    def heard(self, messages: Sequence[Message]) -> None:
        """Add what followed a reply."""
        self.messages += messages
        self._ids += map(self._observed, messages)

    def replace(self, kept: Sequence[tuple[int | None, Message]]) -> None:
        """Put other messages in place of all, each with its old position, or None if it is new or changed."""
        self._ids = self._moved(kept)
        self.messages = [message for _, message in kept]
        self.rendered += 1

    def _moved(self, kept: Sequence[tuple[int | None, Message]]) -> list[list[int]]:
        after = kept[self._first :]
        return [self._observed(message) if was is None else self._ids[was - self._first] for was, message in after]

    def _observed(self, message: Message) -> list[int]:
        return self.speech.renderer.encode_text(f"\n\n<interpreter>\n{message['content']}\n</interpreter>\n\n")


def _called(text: str) -> dict[str, Any]:
    """Return the action of a call; its JSON may have line breaks, also within its texts.

    Raises:
        Malformed: it is no call.
    """
    try:
        call = json.loads(text, strict=False)
        name, arguments = call["name"], call["arguments"]
    except (ValueError, KeyError, TypeError, RecursionError):
        name = arguments = None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise Malformed('the call is no JSON; write {"name": NAME, "arguments": {...}}')
    return {"tool": name, "arguments": arguments}
