"""Prompts put together from parts have the ids of the whole, whatever stands in them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers

import openclaw.gateway.segments as segments
from openclaw.gateway.segments import SegmentEncoder
from tests.helpers.tiny_random import build_tokenizer

PIECES = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "<|im_", "|>", "\n", " "]
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8), st.just("\u0338")), max_size=12).map("".join)


def changed(**options: Any) -> Any:
    """Return a tokenizer of which something is different."""
    tokenizer = build_tokenizer()
    if options.pop("nfc", False):
        tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    if options:
        tokenizer.add_tokens([AddedToken("<|pad|>", special=True, **options)], special_tokens=True)
    return tokenizer


PLAIN = build_tokenizer()
NORMALISING = changed(nfc=True)


@pytest.mark.parametrize("tokenizer", [PLAIN, NORMALISING], ids=["plain", "nfc"])
@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_the_ids_are_those_of_the_whole(tokenizer: Any, text: str) -> None:
    encoder = SegmentEncoder(tokenizer)
    expected = tokenizer.encode(text, add_special_tokens=False)
    assert encoder.encode(text) == expected
    assert encoder.encode(text) == expected


def test_a_history_is_tokenised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = SegmentEncoder(PLAIN)
    asked: list[str] = []
    plain = PLAIN.encode
    monkeypatch.setattr(PLAIN, "encode", lambda text, **options: asked.append(text) or plain(text, **options))
    messages = [{"role": "user", "content": "One?"}]
    encoder.encode(PLAIN.apply_chat_template(messages, tokenize=False))
    messages += [{"role": "assistant", "content": "One."}, {"role": "user", "content": "Two?"}]
    asked.clear()
    encoder.encode(PLAIN.apply_chat_template(messages, tokenize=False))
    assert asked == ["assistant\nOne.", "user\nTwo?"]


@pytest.mark.parametrize("options", [{"lstrip": True}, {"rstrip": True}, {"single_word": True}])
def test_a_tokenizer_whose_control_tokens_reach_beyond_themselves_does_it_itself(options: dict[str, bool]) -> None:
    tokenizer = changed(**options)
    text = "<|im_start|>user\n a <|pad|> b<|pad|>c<|im_end|>\n"
    assert SegmentEncoder(tokenizer).encode(text) == tokenizer.encode(text, add_special_tokens=False)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MOST_CACHED_TOKENS", 50)
    encoder = SegmentEncoder(PLAIN)
    for number in range(100):
        encoder.encode(f"<|im_start|>number {number}<|im_end|>")
        assert encoder._cached_tokens == sum(map(len, encoder._cache.values())) <= 50
    assert encoder.encode("<|im_start|>number 0") == PLAIN.encode("<|im_start|>number 0", add_special_tokens=False)
