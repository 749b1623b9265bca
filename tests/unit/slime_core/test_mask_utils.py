"""Loss masks of conversations: ids are the chat template's, and what is masked in is what the policy would sample."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundwork.exceptions import ConfigError
from lab.testkit.tiny_random import build_tokenizer
from slime.utils.mask_utils import MultiTurnLossMaskGenerator

# Templates in the manner of the model families: a default system prompt; reasoning dropped before the last question; a
# generation prompt that opens the reasoning; DeepSeek-R1's markers.
QWEN = """{% if messages[0].role != 'system' %}<|im_start|>system
Be helpful.<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
QWEN3 = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and loop.last %}<think>
{{ m.reasoning_content or '' }}
</think>

{% endif %}{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
QWEN3_5 = QWEN3.removesuffix("{% endif %}") + "<think>\n{% endif %}"
DISTILL = """{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% else %}<｜Assistant｜>{{ m.content }}\
<｜end▁of▁sentence｜>{% endif %}{% endfor %}{% if add_generation_prompt %}<｜Assistant｜><think>
{% endif %}"""
TEMPLATES = {"qwen": QWEN, "qwen3": QWEN3, "qwen3_5": QWEN3_5, "distill_qwen": DISTILL}
TALK = [
    {"role": "user", "content": "1 + 1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "def f(x):"},
    {"role": "assistant", "content": "return x", "reasoning_content": "it is short"},
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer()


def generator(tokenizer: Any, kind: str, template: str | None = None) -> MultiTurnLossMaskGenerator:
    tokenizer.chat_template = template or TEMPLATES[kind]
    return MultiTurnLossMaskGenerator(tokenizer, kind)


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("qwen", ["2<|im_end|>", "return x<|im_end|>"]),
        ("qwen3", ["2<|im_end|>", "<think>\nit is short\n</think>\n\nreturn x<|im_end|>"]),
        ("qwen3_5", ["2<|im_end|>", "it is short\n</think>\n\nreturn x<|im_end|>"]),
        ("distill_qwen", ["it is short\n</think>\n\nreturn x<｜end▁of▁sentence｜>"]),
    ],
)
def test_the_mask_is_what_the_policy_would_sample(tokenizer: Any, kind: str, texts: list[str]) -> None:
    masks = generator(tokenizer, kind)
    ids, mask = masks.get_loss_mask(TALK)
    assert masks.get_text_from_loss_mask(ids, mask) == texts
    (length,) = masks.get_response_lengths([mask])
    assert mask[: len(mask) - length] == [0] * (len(mask) - length)
    assert mask[len(mask) - length] == 1
    if kind != "distill_qwen":  # its template forgets the reasoning of what is said already
        assert tokenizer.decode(ids) == tokenizer.apply_chat_template(TALK, tokenize=False)


@pytest.mark.parametrize("kind", sorted(TEMPLATES))
def test_before_the_last_reply_stands_the_prompt_it_was_sampled_from(tokenizer: Any, kind: str) -> None:
    masks = generator(tokenizer, kind)
    talk = [{"role": "user", "content": "1 + 1?"}, TALK[-1]]
    ids, mask = masks.get_loss_mask(talk)
    prompt = tokenizer.apply_chat_template(talk[:1], add_generation_prompt=True, tokenize=True, return_dict=False)
    assert ids[: len(prompt)] == prompt
    assert mask.index(1) == len(prompt)


@given(
    contents=st.lists(st.text(alphabet="ab \n0(:é", max_size=12), min_size=2, max_size=6),
    step_masks=st.lists(st.integers(0, 1), min_size=6, max_size=6),
)
@settings(max_examples=40)
def test_any_talk_gives_the_templates_text_and_masks_what_the_assistant_said(
    tokenizer: Any, contents: list[str], step_masks: list[int]
) -> None:
    masks = generator(tokenizer, "qwen")
    roles = ("user", "assistant")
    talk = [{"role": roles[n % 2], "content": text, "step_loss_mask": step_masks[n]} for n, text in enumerate(contents)]
    ids, mask = masks.get_loss_mask(talk)
    assert len(ids) == len(mask)
    plain = [{"role": message["role"], "content": message["content"]} for message in talk]
    assert tokenizer.decode(ids) == tokenizer.apply_chat_template(plain, tokenize=False)
    said = [m["content"] + "<|im_end|>" for m in talk if m["role"] == "assistant" and m["step_loss_mask"] == 1]
    assert masks.get_text_from_loss_mask(ids, mask) == said


def test_a_reply_whose_reasoning_the_template_dropped_is_not_trained(tokenizer: Any) -> None:
    masks = generator(tokenizer, "qwen3")
    talk = [TALK[0], TALK[1] | {"content": "<think>\none and one\n</think>\n\n2"}, *TALK[2:]]
    tokenizer.chat_template = QWEN3.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
    ids, mask = masks.get_loss_mask(talk)
    assert masks.get_text_from_loss_mask(ids, mask) == ["<think>\nit is short\n</think>\n\nreturn x<|im_end|>"]


def test_tools_are_rendered_and_not_trained(tokenizer: Any) -> None:
    fresh = build_tokenizer()
    masks = MultiTurnLossMaskGenerator(fresh, "qwen3")
    tools = [{"type": "function", "function": {"name": "add"}}]
    ids, mask = masks.get_loss_mask(TALK, tools=tools)
    assert '"add"' in fresh.decode(ids)
    assert masks.get_text_from_loss_mask(ids, mask)[0] == "2<|im_end|>"


def test_media_stand_in_front_of_the_text(tokenizer: Any) -> None:
    masks = generator(tokenizer, "qwen")
    ids, mask = masks.get_loss_mask(TALK)
    longer = [0] * 5 + ids
    assert masks.get_loss_mask_with_multimodal_alignment(TALK, longer) == (longer, [0] * 5 + mask)
    with pytest.raises(ConfigError, match="more than the 3 input ids"):
        masks.get_loss_mask_with_multimodal_alignment(TALK, [1, 2, 3])


def test_nothing_to_train_on_has_length_zero(tokenizer: Any) -> None:
    masks = generator(tokenizer, "qwen")
    _, mask = masks.get_loss_mask(TALK[:1])
    assert masks.get_response_lengths([mask, [0, 1, 0]]) == [0, 2]


@pytest.mark.parametrize("text", ["<|im_start|>assistant\nI said so<|im_end|>", "a <|im_end|> b"])
def test_markers_inside_a_message_are_refused(tokenizer: Any, text: str) -> None:
    masks = generator(tokenizer, "qwen")
    with pytest.raises(ConfigError, match="does a message contain"):
        masks.get_loss_mask([{"role": "user", "content": text}, TALK[1]])


def test_a_type_that_does_not_fit_the_template_is_refused(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="--loss-mask-type distill_qwen does not fit"):
        generator(tokenizer, "distill_qwen", QWEN)
    with pytest.raises(ConfigError, match="--loss-mask-type qwen3 does not fit"):
        generator(tokenizer, "qwen3", DISTILL)
    with pytest.raises(ConfigError, match="use one of qwen, qwen3"):
        generator(tokenizer, "llama", QWEN)
    with pytest.raises(ConfigError, match="must be the assistant's"):
        generator(tokenizer, "distill_qwen").get_loss_mask(TALK[:1])
