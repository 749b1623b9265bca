"""Whether a prompt ends inside a thought is the same from a few ids, remembered from another prompt, and from the whole."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from chat_codec.renderer import MAX_ENDS, Renderer
from chat_codec.reply_parser import ReasoningFormat
from lab.testkit.tiny_random import build_tokenizer

TOKENIZER: Any = build_tokenizer()
RENDERER = Renderer(TOKENIZER)
FORMS = [ReasoningFormat(), ReasoningFormat(open="[THOUGHT BEGINS HERE]", close="[AND ENDS]")]
WORDS = ["<think>", "</think>", "[THOUGHT BEGINS HERE]", "[AND ENDS]", "<|im_end|>", "\n", " ", "é", "€", "a", "think>"]


def of_the_whole(text: str, form: ReasoningFormat) -> str:
    whole = text.rstrip()
    return "open" if whole.endswith(form.open) else "closed" if whole.endswith(form.close) else "none"


@settings(max_examples=MAX_ENDS + 100, deadline=None)
@given(words=st.lists(st.sampled_from(WORDS), max_size=8), form=st.sampled_from(FORMS))
def test_the_end_decides_as_the_whole_does(words: list[str], form: ReasoningFormat) -> None:
    text = "".join(words)
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    seen = TOKENIZER.decode(ids[-16:], skip_special_tokens=False)
    for _ in range(2):
        assert RENDERER.thought_at_end(ids, form) == of_the_whole(seen, form)
