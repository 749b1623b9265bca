"""Prompts put together from parts have the ids of the whole, whatever stands in them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import chat_codec.prompts as segments
from chat_codec.prompts import RESERVED, Controls, SegmentEncoder
from lab.testkit.tiny_random import build_tokenizer

PIECES = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "<|im_", "|>", "\n", " "]
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8), st.just("\u0338")), max_size=12).map("".join)


def changed(**options: Any) -> Any:
    """Return a tokenizer of which something is different."""
    tokenizer: Any = build_tokenizer()
    if options.pop("nfc", False):
        tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    if options:
        tokenizer.add_tokens([AddedToken("<|pad|>", special=True, **options)], special_tokens=True)
    return tokenizer


def encoder_of(tokenizer: Any) -> SegmentEncoder:
    return SegmentEncoder(tokenizer, Controls(tokenizer))


def marked(tokenizer: Any, text: str) -> str:
    """Return a text as if the template had written all of it."""
    return Controls(tokenizer).mark(text)


def in_pieces() -> Any:
    """Return a tokenizer of words that knows its control tokens as pieces of the model, as SentencePiece's do."""
    pieces = [
        ("<unk>", 0.0),
        ("<s>", 0.0),
        ("</s>", 0.0),
        ("▁", -2.0),
        ("\n", -2.0),
        *((chr(n), -5.0) for n in range(33, 127)),
    ]
    backend = Tokenizer(models.Unigram([*pieces, ("▁hello", -3.0)], 0, False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("<unk>", "<s>", "</s>")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")


PLAIN: Any = build_tokenizer()
NORMALISING = changed(nfc=True)
PIECES_OF_MODEL = in_pieces()


@pytest.mark.parametrize("tokenizer", [PLAIN, NORMALISING], ids=["plain", "nfc"])
@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_the_ids_are_those_of_the_whole(tokenizer: Any, text: str) -> None:
    assume(not any(character in text for character in RESERVED))
    assume(tokenizer is PLAIN or ">\u0338" not in text)
    encoder = encoder_of(tokenizer)
    expected = tokenizer.encode(text, add_special_tokens=False)
    assert encoder.encode(marked(tokenizer, text)) == expected
    assert encoder.encode(marked(tokenizer, text)) == expected


@pytest.mark.parametrize("tokenizer", [PLAIN, NORMALISING, PIECES_OF_MODEL], ids=["plain", "nfc", "pieces"])
@settings(max_examples=100, deadline=None)
@given(text=st.lists(st.sampled_from([*PIECES, "<s>", "</s>", "hello"]), max_size=12).map("".join))
def test_text_without_marks_has_no_control_token(tokenizer: Any, text: str) -> None:
    ids = encoder_of(tokenizer).encode(text)
    assert not set(ids) & set(tokenizer.added_tokens_decoder)
    assert tokenizer.decode(ids).strip() == text.strip()


def test_a_tokenizer_that_is_not_byte_level_encodes_the_whole() -> None:
    text = "<s>hello hello</s><s> hello</s>"
    expected = PIECES_OF_MODEL.encode(text, add_special_tokens=False)
    assert encoder_of(PIECES_OF_MODEL).encode(marked(PIECES_OF_MODEL, text)) == expected


def test_a_client_cannot_normalise_the_templates_control_token_away() -> None:
    text = "<think>\u0338"
    assert NORMALISING.convert_tokens_to_ids("<think>") not in NORMALISING.encode(text, add_special_tokens=False)
    assert encoder_of(NORMALISING).encode(marked(NORMALISING, text))[0] == NORMALISING.convert_tokens_to_ids("<think>")


def test_letters_that_normalise_to_a_control_token_stay_letters() -> None:
    tokenizer = build_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    wide = "".join(chr(ord(letter) + 0xFEE0) for letter in "<think>")
    assert tokenizer.encode(wide, add_special_tokens=False) == tokenizer.convert_tokens_to_ids(["<think>"])
    assert not set(encoder_of(tokenizer).encode(wide)) & set(tokenizer.added_tokens_decoder)


def test_a_history_is_tokenised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = encoder_of(PLAIN)
    asked: list[str] = []
    plain = PLAIN.encode
    monkeypatch.setattr(PLAIN, "encode", lambda text, **options: asked.append(text) or plain(text, **options))
    messages = [{"role": "user", "content": "One?"}]
    encoder.encode(marked(PLAIN, PLAIN.apply_chat_template(messages, tokenize=False)))
    messages += [{"role": "assistant", "content": "One."}, {"role": "user", "content": "Two?"}]
    asked.clear()
    encoder.encode(marked(PLAIN, PLAIN.apply_chat_template(messages, tokenize=False)))
    assert asked == ["assistant\nOne.", "user\nTwo?"]


@pytest.mark.parametrize("options", [{"lstrip": True}, {"rstrip": True}, {"single_word": True}])
def test_a_tokenizer_whose_control_tokens_reach_beyond_themselves_does_it_itself(options: dict[str, bool]) -> None:
    tokenizer = changed(**options)
    text = "<|im_start|>user\n a <|pad|> b<|pad|>c<|im_end|>\n"
    ids = encoder_of(tokenizer).encode(marked(tokenizer, text))
    assert ids == tokenizer.encode(text, add_special_tokens=False)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MAX_CACHED_TOKENS", 50)
    encoder = encoder_of(PLAIN)
    for number in range(100):
        encoder.encode(marked(PLAIN, f"<|im_start|>number {number}<|im_end|>"))
        assert encoder._cached_tokens == sum(map(len, encoder._cache.values())) <= 50
    text = "<|im_start|>number 0"
    assert encoder.encode(marked(PLAIN, text)) == PLAIN.encode(text, add_special_tokens=False)
