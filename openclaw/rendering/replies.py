"""The ids of a reply that nobody here sampled, as the chat template writes it after its prompt.

Guarantees: the prompt's ids are those of a request that asks for this reply. The reply's ids are those of what the
template writes for it, up to and with the control token that ends it, encoded on their own as sampled ids are. So prompt
and reply joined are what an engine reads and scores. A prompt that closes an empty thought keeps it before the reply. Only
the template writes control tokens: text that spells one stays text. A template that changes the prompt when the reply
follows it, or writes no end, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from groundwork.chat_messages import Message
from openclaw.rendering.controls import MARK, PLACE
from openclaw.rendering.prompts import Prompts


class ReplyRenderError(ValueError):
    """The template gives no text that is the reply's alone."""


def reply_ids(
    prompts: Prompts, messages: Sequence[Message], reply: Message, tools: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[list[int], list[int]]:
    """Return the ids of the prompt and of the reply.

    Args:
        prompts: renders.
        messages: the request, cleaned.
        reply: the assistant message, cleaned.
        tools: that the model may call.
        keywords: for the template.

    Raises:
        ReplyRenderError: the template rewrites the prompt, or does not end the reply with a control token.
        TemplateError, TypeError, KeyError: the template refuses the messages.
    """
    before = prompts.write(messages, tools, keywords)
    whole = prompts.write([*messages, reply], tools, keywords)
    spoken = prompts.write([*messages, {"role": "assistant", "content": PLACE}], tools, keywords)
    opened, place, rest = spoken.rpartition(PLACE)
    if not place or not rest.startswith(MARK) or not whole.endswith(rest):
        raise ReplyRenderError("the chat template does not end a reply with a control token")
    if whole.startswith(before):
        start = len(before)
    elif before.startswith(opened) and whole.startswith(opened):  # the prompt for an answer closes an empty thought
        start = len(opened)
    else:
        raise ReplyRenderError("the chat template writes another prompt when a reply follows it")
    text = whole[start : max(start, len(whole) - len(rest))]
    end = prompts.controls.cut(rest)[1]
    return prompts.encode(before), prompts.encode(f"{text}{MARK}{end}")
