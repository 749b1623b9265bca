"""Puts the sampled ids of our own replies into a rendered prompt.

Rendering a reply's message can give other ids than those that were sampled: another split into tokens, or text in place
of the control tokens of an unreadable tool call. The place of such a reply is found with a second rendering, in which a
reserved character stands for each of them. The prompt's text between two parts of this skeleton is what the template
made of the reply. If it is the text of the recorded ids, they are used.

Guarantees: the text of the prompt does not change. Recorded ids stand only where the template put the reply that they
belong to. A reply with a turn's frame inside (``<|im_start|>``, which a client can have sampled with ``logit_bias``) and
a reply that does not match are rendered like any other message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from groundwork.chat_messages import Message
from openclaw.gateway.detokenize import MARKERS
from openclaw.gateway.parsers.deltas import MessageBuilder
from openclaw.gateway.parsers.reply import ReplyParser
from openclaw.gateway.served import Served, ServedReply
from openclaw.rendering.controls import MARK, PLACE, THOUGHT, clean, unmarked
from openclaw.rendering.prompts import TEMPLATE_ERRORS, Prompts

REPLY = re.compile(f"{THOUGHT}[^{PLACE}]*{PLACE}|{PLACE}")
BREAK = THOUGHT


class Splicer:
    """Encodes prompts that carry replies of ours; ``frame`` has the control tokens that no reply has inside."""

    def __init__(self, tokenizer: Any, prompts: Prompts) -> None:
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._controls = prompts.controls
        added = tokenizer.added_tokens_decoder
        special = {index for index, token in added.items() if token.special} | set(tokenizer.all_special_ids)
        self.frame = frozenset(index for index in special if self._controls.texts.get(index, "") not in MARKERS)

    def ids(
        self, messages: Sequence[Message], tools: Sequence[Any], keywords: Mapping[str, Any], served: Served
    ) -> list[int]:
        """Return the ids of a prompt from cleaned messages, tools and keywords; count the replies in ``served``."""
        prompts = self._prompts
        special = {
            position: reply
            for position, reply in sorted(served.replies.items())
            if not self._is_ordinary(reply, messages[position])
        }
        if not special or not prompts.cuts:
            return prompts.encode(prompts.write(messages, tools, keywords))
        spoken = list(messages)
        for position, reply in special.items():
            spoken[position] = self._apart(spoken[position], reply, served)
        text = prompts.write(spoken, tools, keywords)
        for position in special:
            spoken[position] = _placeholder(spoken[position])
        try:
            skeleton = REPLY.split(prompts.write(spoken, tools, keywords))
        except TEMPLATE_ERRORS:
            skeleton = []
        spans = _spans(text, skeleton) if len(skeleton) == len(special) + 1 else []
        ids: list[int] = []
        done = sampled = 0
        for (begin, end), reply in zip(spans, special.values(), strict=False):
            start, body = _start(text, done, begin, end, self._said(reply)), self._body(reply)
            if start is not None and self.frame.isdisjoint(body):
                ids += prompts.encode(text[done:start]) + body
                done = end
                sampled += 1
        served.sampled += sampled
        served.rendered += len(special) - sampled
        return ids + prompts.encode(text[done:])

    def _is_ordinary(self, reply: ServedReply, message: Message) -> bool:
        if reply.ordinary is None:
            said = self._said(reply)
            reply.ordinary = (
                not said[:1].isspace()
                and not self._controls.spelled_in(message)
                and self._prompts.encode(said) == self._body(reply)
            )
        return reply.ordinary

    def _body(self, reply: ServedReply) -> list[int]:
        ids = reply.ids.tolist()
        return ids[:-1] if ids and ids[-1] in self.frame else ids

    def _parts(self, reply: ServedReply) -> list[tuple[bool, str]]:
        """Return a reply's text in parts, each with whether it is a control token."""
        parts: list[tuple[bool, str]] = []
        run: list[int] = []
        for index in self._body(reply):
            control = self._controls.texts.get(index)
            if control is None:
                run.append(index)
                continue
            if run:
                parts.append((False, self._decode(run)))
            parts.append((True, control))
            run = []
        return [*parts, (False, self._decode(run))] if run else parts

    def _decode(self, ids: Sequence[int]) -> str:
        return clean(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _said(self, reply: ServedReply) -> str:
        """Return a reply's marked text."""
        return "".join(MARK + text if control else text for control, text in self._parts(reply))

    def _apart(self, message: Message, reply: ServedReply, served: Served) -> Message:
        """Return a reply's message, read again from its ids if its content spells control tokens.

        Only a sampled control token counts as one. So the template sees thought, content and calls apart, even if the
        client got them as one text.
        """
        content = message.get("content") or ""
        if not self._controls.spelled(content) or self._controls.texts.keys().isdisjoint(reply.ids):
            return message
        parts = self._parts(reply)
        thought, tools = served.form.thought, served.form.tools
        inside = thought is not None and self._decode(reply.prompt_end).rstrip().endswith(thought.open)
        parser = ReplyParser(
            reasoning=thought, tools=tools.parser(served.schemas, _call_id) if tools else None, inside_reasoning=inside
        )
        text = "".join(text if control else self._controls.broken(text, BREAK) for control, text in parts)
        builder = MessageBuilder()
        for delta in [*parser.push(text), *parser.finish()]:
            builder.add(delta)
        said = _whole(builder.message())
        result = {**message, "content": said["content"] or ""}
        if "reasoning_content" in said and ("reasoning_content" in message or (thought and thought.close in content)):
            result["reasoning_content"] = said["reasoning_content"]
        if "tool_calls" in said and not message.get("tool_calls"):
            result["tool_calls"] = [_with_object(call) for call in said["tool_calls"]]
        return result


def _call_id(number: int) -> str:
    return f"call{number}"


def _placeholder(message: Message) -> Message:
    thought = {"reasoning_content": THOUGHT} if message.get("reasoning_content") else {}
    return {"role": message["role"], "content": PLACE, **thought}


def _spans(text: str, skeleton: Sequence[str]) -> list[tuple[int, int]]:
    """Return where the replies stand in ``text``: between the parts of the skeleton; empty if it does not fit."""
    first, *others = skeleton
    if not text.startswith(first):
        return []
    spans: list[tuple[int, int]] = []
    begin = len(first)
    for number, part in enumerate(others, start=1):
        last = number == len(others)
        end = len(text) - len(part) if last else text.find(part, begin)
        if end < begin or not text.startswith(part, end):
            return []
        spans.append((begin, end))
        begin = end + len(part)
    return spans


def _start(text: str, least: int, begin: int, end: int, said: str) -> int | None:
    """Return where the reply ``said`` begins in ``text``, given that it ends at ``end``; None if it is not there.

    The template may put the thought's opening tag before ``begin``, where the skeleton has it too.
    """
    words, shown = unmarked(said), unmarked(text[begin:end])
    if shown.endswith(words):
        return _back(text, end, len(words))
    if words.endswith(shown):
        opening = said[: _back(said, len(said), len(shown))]
        start = begin - len(opening)
        if opening.startswith(MARK) and start >= least and text.startswith(opening, start):
            return start
    return None


def _back(text: str, end: int, count: int) -> int:
    """Return the start of the last ``count`` characters before ``end``, not counting marks."""
    start = end - count
    while missing := count - (end - start - text.count(MARK, start, end)):
        start -= missing
    return start - 1 if start > 0 and text[start - 1] == MARK else start


def _whole(value: Any) -> Any:
    """Return a JSON value without `BREAK` in its strings."""
    if isinstance(value, str):
        return value.replace(BREAK, "")
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, list) else value


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call with its arguments as an object, if they are JSON."""
    try:
        arguments = json.loads(call["function"]["arguments"] or "{}")
    except ValueError:
        return dict(call)
    return {**call, "function": {**call["function"], "arguments": arguments}}
