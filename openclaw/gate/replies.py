"""Read greedy replies as the gateway does: their visible text, and whether they are degenerate.

Guarantees: prompts are rendered and replies parsed by the gateway's own code, so a task is asked as a client would ask it, and
a tool call is broken here if the gateway could not read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from chat_codec.formats import reply_format
from chat_codec.renderer import Renderer
from chat_codec.reply_parser import Content, ReplyParser
from groundwork.chat_messages import Message
from groundwork.processors import load_tokenizer
from openclaw.config.runtime import RuntimeConfig
from openclaw.gate.decision import Paired
from openclaw.judge.hygiene import is_repetitive
from slime.rollout.before_push import Answer


@dataclass(frozen=True)
class Reply:
    """A greedy reply: its visible text; whether the length limit cut it, it repeats, or it has an unreadable tool call."""

    text: str
    cut: bool
    repeats: bool
    broken_call: bool

    @property
    def degenerate(self) -> bool:
        """Whether any of the rules of `openclaw.judge.hygiene` speaks against it."""
        return self.cut or self.repeats or self.broken_call


def unread(answer: Answer) -> Reply:
    """Return a reply without its text and tool calls, for which no tokenizer is needed."""
    ids = answer.greedy_ids[:-1] if answer.finished else answer.greedy_ids
    return Reply("", not answer.finished, is_repetitive(ids), broken_call=False)


def sound(serving: Reply, candidate: Reply) -> Paired:
    """Return which of two replies to the same prompt is not degenerate; a limit that cuts both says nothing about them."""
    if serving.cut and candidate.cut:
        return Paired(not serving.repeats, not candidate.repeats)
    return Paired(not serving.degenerate, not candidate.degenerate)


class ReplyReader:
    """Renders prompts and reads replies with one tokenizer."""

    def __init__(self, tokenizer: Any, config: RuntimeConfig) -> None:
        self._tokenizer = tokenizer
        self._renderer = Renderer(tokenizer)
        self._form = reply_format(
            getattr(tokenizer, "chat_template", None) or "",
            reasoning_parser=config.reasoning_parser,
            tool_call_parser=config.tool_call_parser,
            reasoning_tags=config.reasoning_tags,
        )

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the prompt ids of a request without tools."""
        return self._renderer.render(messages)

    def read(
        self, prompt_ids: Sequence[int], answer: Answer, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> Reply:
        """Return a version's reply.

        Args:
            prompt_ids: that it answers.
            answer: with greedy ids.
            tools: of the request; without any a tool call is text.
        """
        ids, found = answer.greedy_ids[:-1] if answer.finished else answer.greedy_ids, unread(answer)
        functions = [tool.get("function") or {} for tool in tools or ()]
        schemas = {str(each.get("name")): each.get("parameters") or {} for each in functions}
        reasoning = self._form.reasoning
        parser = ReplyParser(
            reasoning=reasoning,
            tools=self._form.tools.parser(schemas, "call_{}".format) if tools and self._form.tools else None,
            inside_reasoning=reasoning is not None and self._renderer.thought_at_end(prompt_ids, reasoning) == "open",
        )
        deltas = parser.push(self._tokenizer.decode(ids, skip_special_tokens=False)) + parser.finish()
        text = "".join(delta.text for delta in deltas if isinstance(delta, Content))
        return replace(found, text=text, broken_call=parser.malformed > 0)


@cache
def reply_reader(tokenizer_path: str) -> ReplyReader:
    """Return the reader of a checkpoint's tokenizer, loaded once per process."""
    return ReplyReader(load_tokenizer(tokenizer_path), RuntimeConfig.from_env())
