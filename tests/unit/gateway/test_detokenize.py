"""Detokenising gives the same text for any split, and never half a character."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from chat_codec.detokenize import ByteDetokenizer, Vocabulary, WindowDetokenizer
from lab.testkit.tiny_random import build_tokenizer


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary(build_tokenizer())


def pieces(ids: list[int], cuts: list[int], kind: Any) -> list[str]:
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    detokenizer = kind(vocabulary())
    return [detokenizer.push(ids[a:b]) for a, b in pairwise(edges)] + [detokenizer.finish()]


TEXT = st.text(max_size=40) | st.sampled_from(["🙂🙃", "déjà vu — 漢字", "<think>a</think>", "\ufffd", "a\n\n b"])


@pytest.mark.parametrize("kind", [ByteDetokenizer, WindowDetokenizer])
@given(text=TEXT, cuts=st.lists(st.integers(0, 100), max_size=8))
def test_any_split_gives_the_text(kind: Any, text: str, cuts: list[int]) -> None:
    tokenizer = vocabulary().tokenizer
    ids = tokenizer.encode(text, add_special_tokens=False)
    parts = pieces(ids, cuts, kind)
    visible = [index for index in ids if index not in vocabulary().silent]
    assert "".join(parts) == tokenizer.decode(visible)
    if "\ufffd" not in text:
        assert all("\ufffd" not in part for part in parts)


@given(ids=st.lists(st.integers(0, 646), max_size=40), cuts=st.lists(st.integers(0, 100), max_size=8))
def test_any_ids_decode_like_the_tokenizer_does(ids: list[int], cuts: list[int]) -> None:
    visible = [index for index in ids if index not in vocabulary().silent]
    expected = vocabulary().tokenizer.decode(visible, clean_up_tokenization_spaces=False)
    assert "".join(pieces(ids, cuts, ByteDetokenizer)) == expected
    assert pieces(ids, cuts, ByteDetokenizer)[-1].count("\ufffd") <= 1


@cache
def with_byte_fallback() -> Vocabulary:
    """A vocabulary as SentencePiece makes it: rare characters are spelled in bytes, a token each."""
    words = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁the", "▁cat", "s", "▁", ",", "<unk>"]
    backend = Tokenizer(
        models.BPE({word: index for index, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True)
    )
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return Vocabulary(PreTrainedTokenizerFast(tokenizer_object=backend))


@given(st.lists(st.sampled_from([" the", " cat", "s", ","]) | st.text(min_size=1, max_size=6), max_size=8))
def test_a_window_does_not_begin_inside_a_character(words: list[str]) -> None:
    """Characters in bytes fill the window many times over; none of them may be lost or become U+FFFD."""
    vocabulary = with_byte_fallback()
    tokens = {token: index for token, index in vocabulary.tokenizer.get_vocab().items()}
    ids = []
    for word in words:
        known = tokens.get(word.replace(" ", "▁"))
        ids += [*word.encode()] if known is None else [known]
    detokenizer = vocabulary.detokenizer()
    assert isinstance(detokenizer, WindowDetokenizer)
    text = "".join(detokenizer.push([index]) for index in ids) + detokenizer.finish()
    assert text == "".join(words) == vocabulary.tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def test_control_tokens_are_silent_and_markers_are_not() -> None:
    tokenizer = vocabulary().tokenizer
    ids = tokenizer.convert_tokens_to_ids(["<think>", "<|im_end|>", "</think>", "<|endoftext|>", "<tool_call>"])
    assert "".join(pieces(ids, [], ByteDetokenizer)) == "<think></think><tool_call>"


def test_a_tokenizer_that_is_not_byte_level_uses_the_window() -> None:
    words = ["▁the", "▁cat", "s", "▁sat"]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="s"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    vocabulary = Vocabulary(PreTrainedTokenizerFast(tokenizer_object=backend))
    detokenizer = vocabulary.detokenizer()
    assert isinstance(detokenizer, WindowDetokenizer)
    assert [detokenizer.push([index]) for index in (0, 1, 2, 3)] == ["the", " cat", "s", " sat"]
