"""Renders messages with a model's chat template, in which the template's control tokens are marked.

Guarantees: the ids are those that the tokenizer gives the template's text, except that control tokens which messages,
tools or keywords spell stay text. A template whose control tokens cannot be told from such text is refused at the
start. Used by one caller at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from groundwork.chat_messages import TEMPLATE_ERRORS, Message
from groundwork.exceptions import ConfigError
from openclaw.rendering.controls import Controls, MarkedRole, clean
from openclaw.rendering.segments import SegmentEncoder

_ASKED: list[Message] = [{"role": "user", "content": "Hi."}]
_CALL = {"id": "call1", "type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}
_TALKS: tuple[list[Message], ...] = (
    _ASKED,
    [{"role": "system", "content": "Be brief."}, *_ASKED, {"role": "assistant", "content": "Hello."}, *_ASKED],
    [
        *_ASKED,
        {"role": "assistant", "content": "", "reasoning_content": "A call.", "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "call1", "content": "Seen."},
    ],
)
_TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},
}


class Prompts:
    """Renders and encodes prompts of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        """Prepare the chat template of a ``transformers`` tokenizer.

        Raises:
            ConfigError: if the wall cannot hold: a slow tokenizer, or a template that puts control tokens together.
        """
        self.controls = Controls(tokenizer)
        self._tokenizer = tokenizer
        self._segments = SegmentEncoder(tokenizer, self.controls)
        self._marked: dict[str, str] = {}
        self._special = {name: self.controls.mark(text) for name, text in tokenizer.special_tokens_map.items()}
        self._marks_roles = False
        self._check()

    def ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        keywords: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the ids of a prompt.

        Raises:
            TemplateError, TypeError, KeyError: if the template refuses the messages.
        """
        return self.encode(self.write(*clean((list(messages), list(tools or ()), dict(keywords or {})))))

    def write(self, messages: Sequence[Message], tools: Sequence[Any], keywords: Mapping[str, Any]) -> str:
        """Return the marked text of a prompt from cleaned messages, tools and keywords."""
        source = self._tokenizer.get_chat_template(tools=tools or None)
        marked = self._marked.get(source)
        if marked is None:
            marked = self._marked[source] = self.controls.mark(source)
        options = {**self._special, **keywords, "chat_template": marked}
        if not self._marks_roles:
            return self._apply(messages, tools, options)
        speakers = [{**message, "role": MarkedRole(message["role"])} for message in messages]
        return self.controls.join(self._apply(speakers, tools, options))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a marked text."""
        return self._segments.encode(text)

    @property
    def cuts(self) -> bool:
        """Whether parts of a text can be encoded one by one."""
        return self._segments.cuts

    def forget(self) -> None:
        """Clear the cache of past prompts."""
        self._segments.forget()

    def _apply(self, messages: Sequence[Message], tools: Sequence[Any], keywords: Mapping[str, Any]) -> str:
        return self._tokenizer.apply_chat_template(
            list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=True, **keywords
        )

    def _check(self) -> None:
        """Find out whether the template makes control tokens of roles, and refuse one that does so of other parts."""
        if self._marks_all():
            return
        self._marks_roles = True
        if not self._marks_all():
            raise ConfigError(
                "the chat template puts control tokens together from parts, so they cannot be told from "
                "those that a client spells; write each of them whole in the template"
            )

    def _marks_all(self) -> bool:
        """Return whether every control token of harmless prompts is marked, and nothing else changes."""
        for talk in _TALKS:
            for tools in ((), (_TOOL,)):
                for keywords in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
                    try:
                        plain = self._apply(talk, tools, keywords)
                    except TEMPLATE_ERRORS:
                        continue
                    if self.write(talk, tools, keywords) != self.controls.mark(plain):
                        return False
        return True
