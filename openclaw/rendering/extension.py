"""What the chat template writes after a reply of ours, if the prompt after it begins with the prompt before it.

The template is shown the conversation with a reserved character in place of the reply. The next prompt is then the old
prompt, the sampled ids and the ids of the rest, provided that

* the text before the reply is that of the old prompt,
* the template shows the reply's thought, and adds none of its own,
* the text after the reply begins with a control token, where tokenisation starts afresh, and
* the reply ends with that token, or with no control token, and has no turn's frame inside.

Guarantee: no sampled id is made, changed or moved. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from groundwork.chat_messages import Message
from openclaw.rendering.controls import MARK, PLACE, THOUGHT
from openclaw.rendering.prompts import Prompts


def ids_after(
    prompts: Prompts,
    messages: Sequence[Message],
    position: int,
    sampled: Sequence[int],
    *,
    tools: Sequence[Any],
    keywords: Mapping[str, Any],
    thought: bool,
    frame: frozenset[int],
) -> list[int] | None:
    """Return the ids between a reply and the next one, or None if the next prompt does not extend the old one.

    Args:
        prompts: renders.
        messages: the conversation, cleaned; the reply and what followed it included.
        position: of the reply in ``messages``.
        sampled: the reply's ids, end token included.
        tools: that the model may call.
        keywords: for the template.
        thought: whether the reply has a thought.
        frame: ids of the tokens that frame turns.

    Raises:
        TemplateError, TypeError, KeyError: if the template refuses the messages.
    """
    if not prompts.cuts or not sampled or not frame.isdisjoint(sampled[:-1]):
        return None
    reply: Message = {"role": messages[position]["role"], "content": PLACE}
    if thought:
        reply["reasoning_content"] = THOUGHT
    before = prompts.write(messages[:position], tools, keywords)
    whole = prompts.write([*messages[:position], reply, *messages[position + 1 :]], tools, keywords)
    if not whole.startswith(before):
        return None
    inside, place, rest = whole[len(before) :].partition(PLACE)
    shown = THOUGHT in inside if thought else not inside
    if not place or not shown or not rest.startswith(MARK):
        return None
    ids = prompts.encode(rest)
    if sampled[-1] not in frame:
        return ids
    return ids[1:] if sampled[-1] == ids[0] else None
