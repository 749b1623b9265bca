"""The prompts of one conversation, token-exact.

The next prompt is the last one, the ids that were sampled, and the ids of the new messages, if the template can be shown to
extend it (`chat_codec.prompts`). Otherwise all messages are rendered, in which our own replies keep their ids
where the template left their text unchanged (`chat_codec.renderer`); such a prompt begins a new segment.

Guarantees: sampled text is never tokenised. Prompts depend on messages and replies only.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chat_codec.detokenize import Vocabulary
from chat_codec.formats import REASONING_FORMATS, TOOL_FORMATS, ReplyFormat, tool_format_of
from chat_codec.renderer import PROMPT_END_TOKENS, Renderer, Served, ServedReply
from chat_codec.reply_parser import MessageBuilder, ReplyParser
from groundwork.chat_messages import Message

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Reply:
    """A sampled reply as a message.

    Attributes:
        message: in OpenAI's format.
        malformed: number of tool calls that are unreadable or cut short.
        thought: whether it has a thought.
    """

    message: Message
    malformed: int
    thought: bool


class Speech:
    """What a model's tokenizer and chat template mean: shared by all conversations of a process."""

    def __init__(self, tokenizer: Any) -> None:
        """Read the template of a ``transformers`` tokenizer.

        Raises:
            RenderError: it has no chat template.
            ConfigError: its template cannot be rendered safely.
        """
        self.renderer = Renderer(tokenizer)
        self._vocabulary = Vocabulary(tokenizer)
        template = str(tokenizer.chat_template)
        thought = REASONING_FORMATS["qwen3"] if "</think>" in template else None
        self.form = ReplyFormat(thought, TOOL_FORMATS[tool_format_of(template)], thought)

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without what frames messages."""
        text = self._vocabulary.detokenizer()
        return text.push(ids) + text.finish()

    def read(self, prompt_ids: Sequence[int], ids: Sequence[int], tools: Tools, turn: int) -> Reply:
        """Return the reply ``ids`` to a prompt as a message; the ids of its calls name the ``turn``."""
        reasoning, calls = self.form.reasoning, self.form.tools
        parser = ReplyParser(
            reasoning=reasoning,
            tools=calls.parser(schemas_of(tools), lambda number: f"call_{turn}_{number}") if calls and tools else None,
            inside_reasoning=self.renderer.thought_at_end(prompt_ids, reasoning) == "open" if reasoning else False,
        )
        text = self._vocabulary.detokenizer()
        builder = MessageBuilder()
        for delta in [*parser.push(text.push(ids)), *parser.push(text.finish()), *parser.finish()]:
            builder.add(delta)
        return Reply(builder.message(), parser.malformed, parser.thought)


def schemas_of(tools: Tools) -> dict[str, Mapping[str, Any]]:
    """Return the parameters of the offered functions by name."""
    return {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}


@dataclass
class Conversation:
    """Messages, and the ids of the replies among them.

    Attributes:
        speech: of the model.
        messages: so far; only `said`, `heard` and `replace` change them.
        tools: that the model may call.
        keywords: for the chat template.
        rendered: number of prompts after the first that were no extension.
    """

    speech: Speech
    messages: list[Message]
    tools: Tools = ()
    keywords: Mapping[str, Any] = field(default_factory=dict[str, Any])
    rendered: int = 0
    _replies: dict[int, ServedReply] = field(default_factory=dict[int, ServedReply])
    _last: tuple[list[int], int, list[int], bool] | None = None

    def prompt(self) -> list[int]:
        """Return the ids of the next prompt.

        Raises:
            RenderError: the template refuses the messages.
        """
        renderer = self.speech.renderer
        if self._last is not None:
            prompt_ids, position, sampled, thought = self._last
            extended = renderer.extended(
                prompt_ids, self.messages, position, sampled, self.tools, self.keywords, thought=thought
            )
            if extended is not None:
                return extended
            self.rendered += 1
        return self._whole(self.messages, self._replies)

    def read(self, prompt_ids: Sequence[int], ids: Sequence[int], turn: int) -> Reply:
        """Return the reply ``ids`` to a prompt as a message."""
        return self.speech.read(prompt_ids, ids, self.tools, turn)

    def length_of(self, kept: Sequence[tuple[int | None, Message]]) -> int:
        """Return the number of tokens of the prompt after `replace`."""
        return len(self._whole([message for _, message in kept], self._moved(kept)))

    def said(self, prompt_ids: list[int], sampled: list[int], reply: Reply) -> None:
        """Add a reply."""
        position = len(self.messages)
        self.messages.append(reply.message)
        self._replies[position] = ServedReply(array("i", sampled), array("i", prompt_ids[-PROMPT_END_TOKENS:]))
        self._last = (prompt_ids, position, sampled, reply.thought)

    def heard(self, messages: Sequence[Message]) -> None:
        """Add what followed a reply."""
        self.messages += messages

    def replace(self, kept: Sequence[tuple[int | None, Message]]) -> None:
        """Put other messages in place of all, each with its old position, or None if it is new or changed."""
        self._replies = self._moved(kept)
        self.messages = [message for _, message in kept]
        self._last = None
        self.rendered += 1

    def _moved(self, kept: Sequence[tuple[int | None, Message]]) -> dict[int, ServedReply]:
        old = self._replies
        return {new: old[was] for new, (was, _) in enumerate(kept) if was is not None and was in old}

    def _whole(self, messages: Sequence[Message], replies: Mapping[int, ServedReply]) -> list[int]:
        served = Served(replies, self.speech.form, schemas_of(self.tools))
        return self.speech.renderer.render(messages, self.tools, self.keywords, served)
