"""Renders messages to prompt ids with the model's chat template: the only place where text becomes tokens.

Guarantees: a prompt is tokenised once; sampled text is never tokenised. Only the template writes control tokens
(`chat_codec.prompts`). Our own replies keep the ids that were sampled, where the template leaves what they say unchanged. They
change the text of the prompt only in how their calls are written, and in line breaks beside their tags.
Long prompts are rendered in the renderer's own thread, so that they do not block the event loop. One caller at a time
uses the tokenizer. Other parts of the runtime call `Renderer.render`, for example for the teacher's hinted prompts.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from chat_codec.formats import ReplyFormat
from chat_codec.prompts import MARK, PLACE, THOUGHT, Prompts, clean, unmarked
from chat_codec.reply_parser import MessageBuilder, ReasoningFormat, ReplyParser
from groundwork.chat_messages import TEMPLATE_ERRORS, Message, content_text, in_template_form

Done = TypeVar("Done")
TAIL_TOKENS = 16
END_TOKENS = 4
"""Tokens at the end of a prompt that usually hold what the template writes before a reply."""
MAX_ENDS = 256
SHORT_CHARACTERS = 8192
Thought = Literal["open", "closed", "none"]
PROMPT_END_TOKENS = 16
"""How many ids of its prompt a served reply keeps, enough to tell whether the prompt ended inside a thought."""


class RenderError(ValueError):
    """The chat template refuses these messages."""


@dataclass(slots=True)
class ServedReply:
    """A reply of ours that a request carries back.

    Attributes:
        ids: as sampled, end token included.
        prompt_end: the last ids of its prompt.
        ordinary: whether rendering its message gives the same ids; None until the renderer finds out.
        said: what its ids say; None until it matters.
    """

    ids: array[int]
    prompt_end: array[int]
    ordinary: bool | None = None
    said: Said | None = None


class Said(NamedTuple):
    """A reply's message, and whether it has a thought and begins inside of one."""

    message: Message
    thinks: bool
    inside: bool


@dataclass
class Served:
    """Our replies in one request.

    Attributes:
        replies: by position of their messages.
        form: the format of replies.
        schemas: of the tools that the request offers.
        sampled: number of replies that got their recorded ids, because rendering gives others.
        rendered: number of such replies that were rendered nevertheless, because the template changed their text.
    """

    replies: Mapping[int, ServedReply]
    form: ReplyFormat
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    sampled: int = 0
    rendered: int = 0


class Renderer:
    """Owns the tokenizer for rendering.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import PreTrainedTokenizerFast
        >>> letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        >>> core = Tokenizer(models.BPE(letters, []))
        >>> core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>", bos_token="<|start|>")
        >>> tokenizer.chat_template = (
        ...     "{% for m in messages %}<|start|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}<|start|>assistant: "
        ... )
        >>> renderer = Renderer(tokenizer)
        >>> ids = renderer.render([{"role": "user", "content": "What does <|end|> do?"}])
        >>> ids.count(tokenizer.eos_token_id)  # a control token that a user spells stays text
        1
    """

    def __init__(self, tokenizer: Any) -> None:
        """Create a renderer for a ``transformers`` tokenizer with a chat template."""
        if not getattr(tokenizer, "chat_template", None):
            raise RenderError("the tokenizer has no chat template; use a chat model's tokenizer (OPENCLAW_TOKENIZER)")
        self._tokenizer = tokenizer
        self._prompts = Prompts(tokenizer)
        self._splicer = Splicer(tokenizer, self._prompts)
        self._lock = threading.RLock()
        self._ends: dict[ReasoningFormat, dict[tuple[int, ...], Thought]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="render")

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        served: Served | None = None,
    ) -> list[int]:
        """Return the prompt ids of a request.

        Args:
            messages: of the request.
            tools: that the model may call.
            chat_template_kwargs: for the template.
            served: our replies among the messages; counts those that needed their recorded ids.

        Raises:
            RenderError: when the template refuses the messages.
        """

        def ids(spoken: list[Message]) -> list[int]:
            cleaned, offered, keywords = clean((spoken, tools or (), chat_template_kwargs or {}))
            if served is not None and served.replies:
                return self._splicer.ids(cleaned, offered, keywords, served)
            return self._prompts.encode(self._prompts.write(cleaned, offered, keywords))

        return self._rendered(messages, ids)

    def _rendered(self, messages: Sequence[Message], work: Callable[[list[Message]], Done]) -> Done:
        """Return the result of ``work`` on the messages as the template expects them.

        Raises:
            RenderError: when the template refuses the messages.
        """
        with self._lock:
            try:
                return in_template_form(messages, work)
            except TEMPLATE_ERRORS as error:
                raise RenderError(f"the chat template refuses the messages: {unmarked(str(error))}") from error

    def encode_text(self, text: str) -> list[int]:
        """Return the ids of a text on its own; it holds no control token, whatever it spells."""
        with self._lock:
            return self._prompts.encode(clean(text))

    async def encode_prompt(self, text: str) -> list[int]:
        """Return the ids of a whole prompt, without blocking the event loop: control tokens that it spells count."""

        def work() -> list[int]:
            with self._lock:
                return list(self._tokenizer(text).input_ids)

        return await self._beside(work, len(text))

    async def decode_prompt(self, ids: Sequence[int]) -> str:
        """Return the text of a whole prompt, control tokens included, without blocking the event loop."""

        def work() -> str:
            with self._lock:
                return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

        return await self._beside(work, len(ids))

    async def _beside(self, work: Callable[[], Done], size: int) -> Done:
        """Return the result of ``work``; work on more than `SHORT_CHARACTERS` runs in the thread."""
        if size <= SHORT_CHARACTERS and self._lock.acquire(blocking=False):
            # Doing something short here is faster than handing it to the thread.
            try:
                return work()
            finally:
                self._lock.release()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def render_reply(
        self,
        messages: Sequence[Message],
        reply: Message,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[list[int], list[int]]:
        """Return the ids of a request and of a reply to it that came as text.

        Raises:
            RenderError: when the template refuses the messages, or gives the reply no text of its own.
        """

        def ids(spoken: list[Message]) -> tuple[list[int], list[int]]:
            *asked, answer = clean(spoken)
            offered, keywords = clean((tools or (), chat_template_kwargs or {}))
            return self._prompts.reply_ids(asked, answer, offered, keywords)

        return self._rendered([*messages, reply], ids)

    def extended(
        self,
        prompt_ids: Sequence[int],
        messages: Sequence[Message],
        position: int,
        sampled: Sequence[int],
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        thought: bool = False,
    ) -> list[int] | None:
        """Return the prompt after a reply as ``prompt_ids``, the reply's ids and new ones; None if it is not an extension.

        Args:
            prompt_ids: that the reply answered.
            messages: the conversation so far, with the reply at ``position``.
            position: of the reply.
            sampled: ids of the reply.
            tools: that the model may call.
            chat_template_kwargs: for the template.
            thought: whether the reply has a thought.

        Raises:
            RenderError: when the template refuses the messages.
        """

        def new_ids(spoken: list[Message]) -> list[int] | None:
            cleaned, offered, keywords = clean((spoken, tools or (), chat_template_kwargs or {}))
            return self._prompts.ids_after(cleaned, position, sampled, offered, keywords, thought=thought)

        added = self._rendered(messages, new_ids)
        return None if added is None else [*prompt_ids, *sampled, *added]

    def forget(self) -> None:
        """Clear the cache of past prompts."""
        with self._lock:
            self._prompts.forget()
            self._ends.clear()

    async def prepare(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        reasoning: ReasoningFormat | None = None,
        served: Served | None = None,
    ) -> tuple[list[int], Thought]:
        """Return the prompt ids and the state of a thought at their end, without blocking the event loop.

        Raises:
            RenderError: when the template refuses the messages.
        """

        def work() -> tuple[list[int], Thought]:
            ids = self.render(messages, tools, chat_template_kwargs, served)
            return ids, "none" if reasoning is None else self.thought_at_end(ids, reasoning)

        size = sum(len(content_text(message.get("content"))) for message in messages)
        return await self._beside(work, size if not tools else SHORT_CHARACTERS + 1)

    def thought_at_end(self, prompt_ids: Sequence[int], reasoning: ReasoningFormat) -> Thought:
        """Return the state of a thought at the end of a prompt."""
        # The template ends nearly all prompts alike, so a few ids at the end are known from another prompt.
        ends = self._ends.setdefault(reasoning, {})
        end = tuple(prompt_ids[-END_TOKENS:])
        thought = ends.get(end)
        if thought is None:
            tail = self._tail(end)
            if len(tail) < max(len(reasoning.open), len(reasoning.close)):
                return _thought(self._tail(prompt_ids[-TAIL_TOKENS:]), reasoning)
            thought = _thought(tail, reasoning)
            if len(ends) < MAX_ENDS:
                ends[end] = thought
        return thought

    def _tail(self, ids: Sequence[int]) -> str:
        with self._lock:
            return self._tokenizer.decode(list(ids), skip_special_tokens=False).rstrip()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False)


def _thought(text: str, reasoning: ReasoningFormat) -> Thought:
    return "open" if text.endswith(reasoning.open) else "closed" if text.endswith(reasoning.close) else "none"


REPLY = re.compile(f"{THOUGHT}[^{PLACE}]*{PLACE}|{PLACE}")
BREAK = THOUGHT


class Splicer:
    """Puts the sampled ids of our own replies into a rendered prompt.

    Rendering a reply's message can give other ids than those that were sampled: another split into tokens, or text in
    place of the control tokens of an unreadable tool call. The place of such a reply is found with a second rendering, in
    which a reserved character stands for each of them. The prompt's text between two parts of this skeleton is what the
    template made of the reply. If it is the text of the recorded ids, or says the same in another writing (a model may write
    ``{"x":1e3}`` where the template writes ``{"x": 1000.0}``), they are used.

    A reply with a turn's frame inside (``<|im_start|>``, which a client can have sampled with ``logit_bias``) and a reply
    that does not match are rendered like any other message.
    """

    def __init__(self, tokenizer: Any, prompts: Prompts) -> None:
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._controls = prompts.controls
        self._frame = prompts.frame

    def ids(
        self, messages: Sequence[Message], tools: Sequence[Any], keywords: Mapping[str, Any], served: Served
    ) -> list[int]:
        """Return the ids of a prompt from cleaned messages, tools and keywords; count the replies in ``served``."""
        prompts = self._prompts
        own = served.replies
        messages = [
            self._as_called(message, own[position], served) if position in own else message
            for position, message in enumerate(messages)
        ]
        spoken = list(messages)
        for position, reply in own.items():
            if self._is_ordinary(reply, spoken[position]) is False:
                spoken[position] = self._apart(spoken[position], reply, served)
        text = prompts.write(spoken, tools, keywords)
        for reply in own.values():
            if reply.ordinary is None:
                reply.ordinary = self._calls_text(reply, served) in text
        special = {position: reply for position, reply in sorted(own.items()) if not reply.ordinary}
        if not special or not prompts.cuts:
            return prompts.encode(text)
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
            start, body = _start(text, done, begin, end, self._text(reply)), self._body(reply)
            if start is None:
                start = self._rewritten(text, done, begin, end, reply, served)
            if start is not None and self._frame.isdisjoint(body):
                ids += prompts.encode(text[done:start]) + body
                done = end
                sampled += 1
        served.sampled += sampled
        served.rendered += len(special) - sampled
        return ids + prompts.encode(text[done:])

    def _is_ordinary(self, reply: ServedReply, message: Message) -> bool | None:
        """Return `ServedReply.ordinary`; None if it depends on how the template writes the reply's calls."""
        if reply.ordinary is None:
            words = self._text(reply)
            ordinary = (
                not words[:1].isspace()
                and not self._controls.spelled_in(message)
                and self._prompts.encode(words) == self._body(reply)
            )
            if not ordinary or not message.get("tool_calls"):
                reply.ordinary = ordinary
        return reply.ordinary

    def _calls_text(self, reply: ServedReply, served: Served) -> str:
        """Return a reply's marked text from two characters before its first call on."""
        words, tools = self._text(reply), served.form.tools
        return words[max(0, words.find(tools.trigger) - 2) :] if tools else words

    def _body(self, reply: ServedReply) -> list[int]:
        ids = reply.ids.tolist()
        return ids[:-1] if ids and ids[-1] in self._frame else ids

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

    def _text(self, reply: ServedReply) -> str:
        """Return a reply's marked text."""
        return "".join(MARK + text if control else text for control, text in self._parts(reply))

    def _as_called(self, message: Message, reply: ServedReply, served: Served) -> Message:
        """Return a reply's message with the arguments as sampled: clients sort their keys, or write 5.0 as 5."""
        calls = message.get("tool_calls")
        if not calls:
            return message
        sampled = self._said(reply, served).message.get("tool_calls", ())
        if [_name(call) for call in calls] != [_name(call) for call in sampled]:
            return message
        named = zip(calls, sampled, strict=True)
        return {**message, "tool_calls": [{**call, "function": said["function"]} for call, said in named]}

    def _apart(self, message: Message, reply: ServedReply, served: Served) -> Message:
        """Return a reply's message, read again from its ids if its content spells control tokens.

        Only a sampled control token counts as one. So the template sees thought, content and calls apart, even if the
        client got them as one text.
        """
        content = message.get("content") or ""
        if not self._controls.spelled(content) or self._controls.texts.keys().isdisjoint(reply.ids):
            return message
        parsed, thought = self._said(reply, served).message, served.form.thought
        result = {**message, "content": parsed["content"] or ""}
        if "reasoning_content" in parsed and ("reasoning_content" in message or (thought and thought.close in content)):
            result["reasoning_content"] = parsed["reasoning_content"]
        if "tool_calls" in parsed and not message.get("tool_calls"):
            result["tool_calls"] = parsed["tool_calls"]
        return result

    def _rewritten(self, text: str, least: int, begin: int, end: int, reply: ServedReply, served: Served) -> int | None:
        """Return where a reply begins in ``text`` that the template wrote in another way; None if it says something else.

        Args: those of `_start`.
        """
        parts = [(number % 2 == 1, part) for number, part in enumerate(self._controls.cut(text[begin:end]))]
        said, shown = self._said(reply, served), self._read(parts, text[least:begin], served)
        if shown[:2] != said[:2]:
            return None
        if shown.inside == said.inside:
            return begin
        assert served.form.thought is not None
        return _back(text, text.rindex(served.form.thought.open, least, begin), 0) if shown.inside else None

    def _said(self, reply: ServedReply, served: Served) -> Said:
        """Return what a reply's ids say."""
        if reply.said is None:
            reply.said = self._read(self._parts(reply), self._decode(reply.prompt_end), served)
        return reply.said

    def _read(self, parts: Sequence[tuple[bool, str]], before: str, served: Served) -> Said:
        """Return what a text says, given in parts as `_parts` has them, and the text before it."""
        thought, tools = served.form.thought, served.form.tools
        inside = thought is not None and before.rstrip().endswith(thought.open)
        parser = ReplyParser(
            reasoning=thought, tools=tools.parser(served.schemas, _call_id) if tools else None, inside_reasoning=inside
        )
        text = "".join(text if control else self._controls.broken(text, BREAK) for control, text in parts)
        builder = MessageBuilder()
        for delta in [*parser.push(text), *parser.finish()]:
            builder.add(delta)
        message = _whole(builder.message())
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [_with_object(call) for call in calls]
        return Said(message, parser.thought, inside)


def _name(call: Mapping[str, Any]) -> object:
    return call["function"].get("name")


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


def _start(text: str, least: int, begin: int, end: int, sampled: str) -> int | None:
    """Return where the reply ``sampled`` begins in ``text``, given that it ends at ``end``; None if it is not there.

    The template may put the thought's opening tag before ``begin``, where the skeleton has it too.
    """
    words, shown = unmarked(sampled), unmarked(text[begin:end])
    if shown.endswith(words):
        return _back(text, end, len(words))
    if words.endswith(shown):
        opening = sampled[: _back(sampled, len(sampled), len(shown))]
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
