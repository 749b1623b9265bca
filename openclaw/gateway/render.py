"""Renders messages to prompt ids with the model's chat template: the only place where text becomes tokens.

Guarantees: a prompt is tokenised once; sampled text is never tokenised. Only the template writes control tokens
(`openclaw.rendering`). Our own replies keep the ids that were sampled, where the template leaves their text unchanged.
Long prompts are rendered in the renderer's own thread, so that they do not block the event loop. One caller at a time
uses the tokenizer. Other parts of the runtime call `Renderer.render`, for example for the teacher's hinted prompts.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

from groundwork.chat_messages import TEMPLATE_ERRORS, Message, content_text, in_template_form
from openclaw.gateway.parsers.reasoning import ReasoningFormat
from openclaw.gateway.served import Served
from openclaw.gateway.splice import Splicer
from openclaw.rendering.controls import clean, unmarked
from openclaw.rendering.extension import ids_after
from openclaw.rendering.prompts import Prompts
from openclaw.rendering.replies import reply_ids

Done = TypeVar("Done")
TAIL_TOKENS = 16
SHORT_CHARACTERS = 8192
Thought = Literal["open", "closed", "none"]


class RenderError(ValueError):
    """The chat template refuses these messages."""


class Renderer:
    """Owns the tokenizer for rendering."""

    def __init__(self, tokenizer: Any) -> None:
        """Create a renderer for a ``transformers`` tokenizer with a chat template."""
        if not getattr(tokenizer, "chat_template", None):
            raise RenderError("the tokenizer has no chat template; use a chat model's tokenizer (OPENCLAW_TOKENIZER)")
        self._tokenizer = tokenizer
        self._prompts = Prompts(tokenizer)
        self._splicer = Splicer(tokenizer, self._prompts)
        self._lock = threading.RLock()
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
            *asked, said = clean(spoken)
            offered, keywords = clean((tools or (), chat_template_kwargs or {}))
            return reply_ids(self._prompts, asked, said, offered, keywords)

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
        """Return the prompt after a reply as ``prompt_ids``, the reply's ids and new ones; None if it is no extension.

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
            return ids_after(
                self._prompts,
                cleaned,
                position,
                sampled,
                tools=offered,
                keywords=keywords,
                thought=thought,
                frame=self._splicer.frame,
            )

        added = self._rendered(messages, new_ids)
        return None if added is None else [*prompt_ids, *sampled, *added]

    def forget(self) -> None:
        """Clear the cache of past prompts."""
        with self._lock:
            self._prompts.forget()

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
        if size <= SHORT_CHARACTERS and not tools and self._lock.acquire(blocking=False):
            # Rendering a short prompt here is faster than handing it to the thread.
            try:
                return work()
            finally:
                self._lock.release()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def thought_at_end(self, prompt_ids: Sequence[int], reasoning: ReasoningFormat) -> Thought:
        """Return the state of a thought at the end of a prompt."""
        with self._lock:
            tail = self._tokenizer.decode(list(prompt_ids[-TAIL_TOKENS:]), skip_special_tokens=False).rstrip()
        return "open" if tail.endswith(reasoning.open) else "closed" if tail.endswith(reasoning.close) else "none"

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False)
