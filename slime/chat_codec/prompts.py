"""Renders messages with a model's chat template, in which the template's control tokens are marked.

Guarantees: the ids are those that the tokenizer gives the template's text, except that control tokens which messages,
tools or keywords spell stay text. A template whose control tokens cannot be told from such text is refused at the
start. No sampled id is made, changed or moved. Used by one caller at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chat_codec.control_tokens import MARK, PLACE, THOUGHT, Controls, MarkedRole, SegmentEncoder, clean
from chat_codec.detokenize import MARKERS
from groundwork.chat_messages import TEMPLATE_ERRORS, Message
from groundwork.exceptions import ConfigError

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
    """Renders and encodes prompts of one tokenizer; ``frame`` has the control tokens that frame turns."""

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
        added = tokenizer.added_tokens_decoder
        special = {index for index, token in added.items() if token.special} | set(tokenizer.all_special_ids)
        self.frame = frozenset(index for index in special if self.controls.texts.get(index, "") not in MARKERS)
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

    def reply_ids(
        self, messages: Sequence[Message], reply: Message, tools: Sequence[Any], keywords: Mapping[str, Any]
    ) -> tuple[list[int], list[int]]:
        """Return the ids of a prompt and of a reply to it that nobody here sampled.

        The prompt's ids are those of a request that asks for this reply. The reply's are those of what the template writes
        for it, up to and with the control token that ends it, encoded on their own as sampled ids are. A prompt that
        closes an empty thought keeps it before the reply. Messages, reply, tools and keywords are cleaned.

        Raises:
            ValueError: the template rewrites the prompt, or does not end the reply with a control token.
            TemplateError, TypeError, KeyError: the template refuses the messages.
        """
        before = self.write(messages, tools, keywords)
        whole = self.write([*messages, reply], tools, keywords)
        spoken = self.write([*messages, {"role": "assistant", "content": PLACE}], tools, keywords)
        opened, place, rest = spoken.rpartition(PLACE)
        if not place or not rest.startswith(MARK) or not whole.endswith(rest):
            raise ValueError("the chat template does not end a reply with a control token")
        if whole.startswith(before):
            start = len(before)
        elif before.startswith(opened) and whole.startswith(opened):  # the prompt for an answer closes an empty thought
            start = len(opened)
        else:
            raise ValueError("the chat template writes another prompt when a reply follows it")
        text = whole[start : max(start, len(whole) - len(rest))]
        end = self.controls.cut(rest)[1]
        return self.encode(before), self.encode(f"{text}{MARK}{end}")

    def ids_after(
        self,
        messages: Sequence[Message],
        position: int,
        sampled: Sequence[int],
        tools: Sequence[Any],
        keywords: Mapping[str, Any],
        *,
        thought: bool,
    ) -> list[int] | None:
        """Return the ids between a reply and the next one, or None if the next prompt does not extend the old one.

        The template is shown the conversation with a reserved character in place of the reply. The next prompt is the old
        prompt, the sampled ids and the ids of the rest, provided that

        * the text before the reply is that of the old prompt,
        * the template shows the reply's thought, and adds none of its own,
        * the text after the reply begins with a control token, where tokenisation starts afresh, and
        * the reply ends with that token, or with no control token, and has no turn's frame inside.

        Args:
            messages: the conversation, cleaned; the reply and what followed it included.
            position: index of the reply in ``messages``.
            sampled: the reply's ids, end token included.
            tools: that the model may call, cleaned.
            keywords: for the template, cleaned.
            thought: whether the reply has a thought.

        Raises:
            TemplateError, TypeError, KeyError: if the template refuses the messages.
        """
        if not self.cuts or not sampled or not self.frame.isdisjoint(sampled[:-1]):
            return None
        reply: Message = {"role": messages[position]["role"], "content": PLACE}
        if thought:
            reply["reasoning_content"] = THOUGHT
        before = self.write(messages[:position], tools, keywords)
        whole = self.write([*messages[:position], reply, *messages[position + 1 :]], tools, keywords)
        if not whole.startswith(before):
            return None
        inside, place, rest = whole[len(before) :].partition(PLACE)
        shown = THOUGHT in inside if thought else not inside
        if not place or not shown or not rest.startswith(MARK):
            return None
        ids = self.encode(rest)
        if sampled[-1] not in self.frame:
            return ids
        return ids[1:] if sampled[-1] == ids[0] else None

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
