"""Tokenizer, chat template and batches of the tiny model."""

from __future__ import annotations

import random
from typing import Any

import pytest
from transformers import AutoTokenizer

from chat_codec.reply_parser import ReasoningFormat, ReplyParser
from chat_codec.tool_calls import JsonToolCalls
from lab.tiny_models.batches import batches, encode
from lab.tiny_models.episodes import CALCULATOR, Episode, judge_episode, policy_episode
from lab.tiny_models.hints import quote
from lab.tiny_models.tokenizer import CONTROL_TOKENS, SPECIAL_TOKENS, build_tokenizer, completion_text, prompt_text
from openclaw.judge.prompts import judge_messages
from openclaw.messages.hints import append_hint

NO_THINKING = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
USER = {"role": "user", "content": "Hi."}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(600, 200, 0).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def render(tokenizer: Any, messages: list[dict[str, Any]], **keywords: Any) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **keywords)


def test_size_and_control_tokens(tokenizer: Any) -> None:
    assert len(tokenizer) == 600
    for token in [*SPECIAL_TOKENS, *CONTROL_TOKENS]:
        assert len(tokenizer(token, add_special_tokens=False)["input_ids"]) == 1
    shown = tokenizer.decode(tokenizer("<think>a</think><|im_end|>")["input_ids"], skip_special_tokens=True)
    assert shown == "<think>a</think>"
    assert tokenizer.eos_token == "<|im_end|>"


@pytest.mark.parametrize("text", ["héllo 😀 12\n\n", "\\boxed{7}", "   two  spaces\tand tabs", "日本語"])
def test_any_text_round_trips(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_thinking_is_off_unless_asked_for(tokenizer: Any) -> None:
    assert render(tokenizer, [USER]).endswith(NO_THINKING)
    assert render(tokenizer, [USER], enable_thinking=False).endswith(NO_THINKING)
    assert render(tokenizer, [USER], enable_thinking=True).endswith("<|im_start|>assistant\n")


def test_history_shows_no_thoughts(tokenizer: Any) -> None:
    reply = {"role": "assistant", "content": "<think>\nx\n</think>\n\nIt is 3.", "reasoning_content": "x"}
    assert render(tokenizer, [USER, reply, USER]).count("<think>") == 1
    assert "<|im_start|>assistant\nIt is 3.<|im_end|>\n" in render(tokenizer, [USER, reply, USER])


@pytest.mark.parametrize("arguments", ['{"expression": "3 + 4"}', {"expression": "3 + 4"}])
def test_tools_are_rendered_like_qwen(tokenizer: Any, arguments: Any) -> None:
    call = {"type": "function", "function": {"name": "calculator", "arguments": arguments}}
    messages = [
        {"role": "system", "content": "Be nice."},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "7"},
        {"role": "tool", "content": "8"},
    ]
    text = render(tokenizer, messages, tools=[CALCULATOR])
    assert text.startswith("<|im_start|>system\nBe nice.\n\n# Tools\n<tools>\n{")
    expected = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3 + 4"}}\n</tool_call><|im_end|>\n'
    assert f"<|im_start|>assistant\n{expected}" in text
    results = "\n<tool_response>\n7\n</tool_response>\n<tool_response>\n8\n</tool_response><|im_end|>\n"
    assert f"<|im_start|>user{results}" in text


def test_content_parts_and_unknown_roles(tokenizer: Any) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert "<|im_start|>user\nab<|im_end|>" in render(tokenizer, parts)
    with pytest.raises(Exception, match="Unknown message role"):
        render(tokenizer, [USER, {"role": "robot", "content": "x"}])


def test_the_gateway_parses_what_is_trained() -> None:
    rng = random.Random(0)
    seen = set()
    for _ in range(400):
        episode = policy_episode(rng)
        message = episode.messages[-1]
        parser = ReplyParser(reasoning=ReasoningFormat(), tools=JsonToolCalls(str) if episode.tools else None)
        deltas = [*parser.push(completion_text(message).removesuffix("<|im_end|>")), *parser.finish()]
        kinds = {type(delta).__name__ for delta in deltas}
        assert ("Reasoning" in kinds) == episode.thinking
        assert ("ToolCallStart" in kinds) == bool(message.get("tool_calls"))
        seen |= kinds
    assert {"Content", "Reasoning", "ToolCallStart", "ToolCallArguments"} <= seen


def test_weights_mark_the_target(tokenizer: Any) -> None:
    rng = random.Random(7)
    for _ in range(60):
        for episode in (policy_episode(rng), judge_episode(rng)):
            encoded = encode(tokenizer, episode)
            target = tokenizer(completion_text(episode.messages[-1]), add_special_tokens=False)["input_ids"]
            assert encoded.ids[-len(target) :] == target
            assert all(weight > 0 for weight in encoded.weights[-len(target) :])
            prompt = tokenizer(prompt_text(tokenizer, episode), add_special_tokens=False)["input_ids"]
            assert encoded.ids[: len(prompt)] == prompt
            if episode.kind == "judge":
                assert not any(encoded.weights[: len(prompt)])


def test_earlier_replies_are_trained_without_their_first_token(tokenizer: Any) -> None:
    messages = [USER, {"role": "assistant", "content": "Okay, 2 + 3 = 5."}, USER, {"role": "assistant", "content": "1"}]
    encoded = encode(tokenizer, Episode(messages))
    pieces = [(tokenizer.decode([token]), weight) for token, weight in zip(encoded.ids, encoded.weights, strict=True)]
    trained = [piece for piece in pieces if piece[1] > 0]
    assert ("5", 4.0) in trained
    assert ("2", 2.0) in trained
    assert "".join(piece for piece, _ in trained).endswith("2 + 3 = 5.<|im_end|>1<|im_end|>")
    assert not "".join(piece for piece, _ in trained).startswith("Okay")


def test_batches_are_deterministic_and_bounded(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.tiny_models.batches.POOL", 100)
    first, again = next(batches(tokenizer, 3, 512)), next(batches(tokenizer, 3, 512))
    assert first[0].equal(again[0])
    assert first[1].equal(again[1])
    assert first[0].numel() <= 512


def test_a_hint_quotes_the_very_tokens_of_the_message(tokenizer: Any) -> None:
    said = "No zabofi please. Write it again"
    question = judge_messages("hint", "a reply", [("user", said)], "brief", "BCDFGH")
    asked = prompt_text(tokenizer, Episode([*question, {"role": "assistant", "content": ""}], kind="judge"))
    ids = tokenizer(said, add_special_tokens=False)["input_ids"]
    for text in (asked, f"[HINT_START] {quote(said)} [HINT_END]", append_hint([USER], quote(said))[0]["content"]):
        found = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert any(found[start : start + len(ids)] == ids for start in range(len(found)))
