"""Recorded ids change how a prompt is split into tokens, never its text or its turns, whatever was sampled."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chat_codec.formats import TOOL_FORMATS, ReplyFormat
from chat_codec.renderer import Renderer, Served, ServedReply
from chat_codec.reply_parser import MessageBuilder, ReasoningFormat, ReplyParser
from tests.helpers.qwen_tokenizers import qwen3, qwen3_5

THOUGHT = ReasoningFormat()
FORMS = {
    "qwen3": ReplyFormat(THOUGHT, TOOL_FORMATS["qwen25"], THOUGHT),
    "qwen3.5": ReplyFormat(THOUGHT, TOOL_FORMATS["qwen3_coder"], THOUGHT),
}
SCHEMAS: dict[str, dict[str, Any]] = {"read": {}}
PIECES = [
    *("Hello", "five.", "\n", "\n\n", " ", "é", "日本", "<tool_call>", "</tool_call>", "<think>", "</think>"),
    *(
        '{"name": "read", "arguments": {"path": "a"}}',
        "<function=read>\n<parameter=path>\na\n</parameter>\n</function>",
    ),
    *("<think>\nhm\n</think>\n\n", "<|im_end|>", "<|im_start|>"),
]
TEXTS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join)


@cache
def made(name: str) -> tuple[Any, Renderer]:
    tokenizer = {"qwen3": qwen3, "qwen3.5": qwen3_5}[name]()
    return tokenizer, Renderer(tokenizer)


def sample(tokenizer: Any, text: str, cuts: Sequence[int]) -> list[int]:
    """Return ids of ``text`` as a model might sample them: control tokens whole, the rest split anywhere."""
    controls = {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}
    ids: list[int] = []
    number = 0
    while text:
        token = next((token for token in controls if text.startswith(token)), None)
        length = 1 if token else cuts[(number := number + 1) % len(cuts)]
        if token and cuts[(number := number + 1) % len(cuts)] > 1:
            ids, text = [*ids, controls[token]], text[len(token) :]
            continue
        piece = text[:length] if "<" not in text[1:length] else text[:1]
        ids, text = [*ids, *tokenizer.encode(piece, add_special_tokens=False)], text[len(piece) :]
    return ids


def shown(tokenizer: Any, ids: Sequence[int], form: ReplyFormat) -> dict[str, Any]:
    """Return the message that the client got."""
    assert form.tools is not None
    parser = ReplyParser(reasoning=form.reasoning, tools=form.tools.parser(SCHEMAS, str))
    builder = MessageBuilder()
    for delta in [*parser.push(tokenizer.decode(ids)), *parser.finish()]:
        builder.add(delta)
    return builder.message()


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_text_and_turns_stay_as_they_were(name: str, data: st.DataObject) -> None:
    tokenizer, renderer = made(name)
    messages: list[dict[str, Any]] = []
    replies: dict[int, ServedReply] = {}
    plain = True
    for _ in range(data.draw(st.integers(1, 4))):
        messages.append({"role": "user", "content": data.draw(TEXTS)})
        cuts = data.draw(st.lists(st.integers(1, 8), min_size=3, max_size=9))
        ids = sample(tokenizer, data.draw(TEXTS), cuts)
        message = shown(tokenizer, ids, FORMS[name])
        if data.draw(st.booleans()):
            message.pop("reasoning_content", None)
        if data.draw(st.integers(0, 3)):
            replies[len(messages)] = ServedReply(array("i", [*ids, tokenizer.eos_token_id]), array("i"))
            plain = plain and "<" not in (message["content"] or "")
        messages.append(message)
        if message.get("tool_calls"):
            messages.append({"role": "tool", "tool_call_id": "x", "content": data.draw(TEXTS)})
    messages.append({"role": "user", "content": "Next."})
    served = Served(replies, FORMS[name], SCHEMAS)
    spliced, rendered = renderer.render(messages, served=served), renderer.render(messages)
    frame = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    assert [index for index in spliced if index in frame] == [index for index in rendered if index in frame]
    assert served.sampled + served.rendered <= len(replies)
    if plain:  # otherwise the template gets the parts of a reply that the client got as one text
        assert tokenizer.decode(spliced).split() == tokenizer.decode(rendered).split()
