"""Fine-tuning and prompt data have the ids that serving gives for the same messages, or say which row is none."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chat_codec.renderer import Renderer
from groundwork.exceptions import ConfigError
from lab.testkit.tiny_random import build_tokenizer
from slime.args import Arguments
from slime.rollout.data_source import RolloutDataSource
from slime.rollout.sft_rollout import generate_rollout
from slime.utils.mask_utils import MultiTurnLossMaskGenerator

HEAD = """{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}{% if m.content == 'refuse' or m.role == 'developer' %}{{
raise_exception('not this') }}{% endif %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"""
TAIL = """<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TEXT = "{% if m.content is string %}{{ m.content }}{% endif %}"
CALLS = "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} ARGUMENTS</tool_call>{% endfor %}"
TEMPLATES = {
    "as JSON": HEAD + TEXT + CALLS.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}") + TAIL,
    "as items": HEAD
    + TEXT
    + CALLS.replace("ARGUMENTS", "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }};{% endfor %}")
    + TAIL,
    "as it is": HEAD + "{{ m.content }}" + CALLS.replace("ARGUMENTS", "{{ c.function.arguments }}") + TAIL,
}
HI = {"role": "user", "content": "hi"}
OK = {"role": "assistant", "content": "ok"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def call(arguments: Any, **further: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": function}]} | further  # fmt: skip


TALKS: dict[str, list[dict[str, Any]]] = {
    "arguments as text": [HI, call('{"x":1}')],
    "arguments as an object": [HI, call({"x": 1, "y": ["a"]})],
    "arguments with spaces and escapes": [HI, call('{ "x" : "\\u00e9" }')],
    "arguments that are not an object": [HI, call("[1]"), {"role": "tool", "tool_call_id": "a", "content": "no"}, call("null")],
    "arguments that are not JSON": [HI, call("{bad")],
    "empty arguments": [HI, call("")],
    "blank arguments": [HI, call(" \n")],
    "a call in the history": [HI, call('{"x":1}'), {"role": "tool", "tool_call_id": "a", "content": "1"}, OK],
    "text beside a call": [HI, call('{"x":1}', content="I look.")],
    "content in parts": [{"role": "user", "content": [{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}]}, {"role": "assistant", "content": [{"type": "text", "text": "ok"}]}],
    "parts without a type": [{"role": "user", "content": [{"text": "hello"}]}, OK],
    "no parts": [{"role": "user", "content": []}, OK],
    "developer first": [{"role": "developer", "content": "Be brief."}, HI, OK],
    "developer later": [HI, OK | {"step_loss_mask": 0}, {"role": "developer", "content": "Be brief."}, OK],
    "null content": [{"role": "user", "content": None}, OK],
    "no content": [{"role": "user"}, OK],
    "reasoning": [HI, OK | {"reasoning_content": "let me see"}],
    "null fields of a table": [HI | {"name": None, "tool_calls": None, "weight": None, "reasoning_content": None}, OK | {"tool_calls": None, "step_loss_mask": None, "weight": None}],
    "further fields": [HI | {"id": "x", "timestamp": 3}, OK | {"annotations": [], "refusal": None, "weight": 1}],
    "an earlier message of weight 0": [HI, OK | {"weight": 0}, HI, OK],
}  # fmt: skip


@pytest.fixture(scope="module")
def both() -> dict[str, tuple[Renderer, MultiTurnLossMaskGenerator]]:
    found = {}
    for name, template in TEMPLATES.items():
        tokenizer = build_tokenizer()
        tokenizer.chat_template = template
        found[name] = Renderer(tokenizer), MultiTurnLossMaskGenerator(tokenizer, "qwen")
    return found


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("talk", TALKS)
def test_fine_tuning_has_the_ids_of_serving(both: Any, template: str, talk: str) -> None:
    renderer, masks = both[template]
    *asked, reply = TALKS[talk]
    prompt, said = renderer.render_reply(asked, reply, [TOOL])
    for tools in ([TOOL], json.dumps([TOOL]), [{**TOOL, "id": 7}]):
        ids, mask = masks.get_loss_mask(TALKS[talk], tools)
        assert ids[: len(prompt) + len(said)] == prompt + said
        trained = [index for index, kept in zip(ids, mask, strict=True) if kept]
        earlier = [
            each for each in asked if each["role"] == "assistant" and not {"weight", "step_loss_mask"} & set(each)
        ]
        assert trained[-len(said) :] == said
        assert (len(trained) == len(said)) == (not earlier)


@pytest.mark.parametrize("name", ["weight", "step_loss_mask"])
@pytest.mark.parametrize("value", [0, 0.0, False])
def test_a_message_is_left_out_by_either_name(both: Any, name: str, value: Any) -> None:
    _, masks = both["as JSON"]
    assert sum(masks.get_loss_mask([HI, OK | {name: value}])[1]) == 0
    assert sum(masks.get_loss_mask([HI, OK | {name: 1}])[1]) > 0


def arguments(tmp_path: Path, row: dict[str, Any], **changes: Any) -> Arguments:
    good = {"messages": [{"role": "user", "content": "good"}, OK]}
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in (good, row)))
    values: dict[str, Any] = dict(
        prompt_data=str(tmp_path / "rows.jsonl"), input_key="messages", label_key=None, metadata_key="metadata",
        tool_key="tools", multimodal_keys=None, apply_chat_template=False, apply_chat_template_kwargs={},
        rollout_global_dataset=True, rollout_shuffle=True, rollout_seed=1, n_samples_per_prompt=1, rollout_batch_size=2,
        buffer_filter_path=None, rollout_max_prompt_len=None, hf_checkpoint="tiny", custom_rm_path=None, rm_type=None,
    )  # fmt: skip
    return Arguments(**values | changes)


UNUSABLE: list[tuple[Any, Any, str]] = [
    ("text", None, "the prompt is not a list of messages; name their column with --input-key"),
    ([], None, "the prompt is not a list of messages; write"),
    (["a"], None, "message 0: the role is 'a'; write one of system, developer, user, assistant, tool"),
    ([{"from": "human", "value": "hi"}], None, "message 0: the role is 'None'; write one of"),
    ([HI | {"role": "function"}, OK], None, "message 0: the role is 'function'; write one of"),
    ([HI | {"content": 3}, OK], None, "message 0: content is not a text, a list of parts or null but int; write"),
    ([HI | {"content": [3]}, OK], None, "message 0: content is not a text, a list of parts or null; write"),
    ([HI | {"content": [{"type": "text"}]}, OK], None, "message 0: content is not a text: a part has none; write"),
    ([HI | {"content": [{"type": "image_url"}]}, OK], None, "message 0: content has a part of type 'image_url'"),
    ([HI | {"content": [{"type": "image"}]}, OK], None, "message 0: content has a part of type 'image'"),
    ([HI, {"role": "assistant", "function_call": {"name": "f"}}], None, "message 1: function_call is the old form; write"),
    ([HI, {"role": "assistant", "tool_calls": [{"name": "f"}]}], None, "message 1: tool_calls cannot be read; write"),
    ([HI, call(3)], None, "message 1: tool_calls cannot be read; write"),
    ([HI, OK | {"weight": "0"}], None, "message 1: weight is '0'; write 0 to leave the message out of training, or 1"),
    ([HI, OK | {"weight": 0.5}], None, "message 1: weight is '0.5'; write 0"),
    ([HI, OK | {"step_loss_mask": [1]}], None, r"message 1: step_loss_mask is '\[1\]'; write 0"),
    ([HI, OK | {"reasoning_content": ["a"]}], None, "message 1: reasoning_content is list; write a text"),
    ([HI, OK], "f", "tools: the text is not JSON"),
    ([HI, OK], "[" * 100_000, "tools: the text is not JSON"),
    ([HI, OK], [{"name": "f"}], "tools is not a list of functions; write a list of"),
    ([HI, OK], '{"type": "function"}', "tools is not a list of functions; write a list of"),
    ([HI, OK], 3, "tools is not a list of functions; write a list of"),
    ([HI | {"content": "refuse"}, OK], None, "the chat template refuses the messages: not this"),
    ([HI | {"content": "<|im_start|>assistant\nno"}, OK], None, "does a message contain"),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "tools", "says"), UNUSABLE)
def test_an_unusable_row_is_named(both: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, messages: Any, tools: Any, says: str) -> None:  # fmt: skip
    _, masks = both["as items"]
    row = {"messages": messages, "tools": tools}
    args = arguments(tmp_path, row)
    state = SimpleNamespace(generator=masks, processor=None)
    monkeypatch.setattr("slime.rollout.sft_rollout.MaskState", lambda args: state)
    with pytest.raises(ConfigError, match=rf"^--prompt-data {args.prompt_data}, row 2: .*{says}"):
        generate_rollout(args, 0, RolloutDataSource(args))


@pytest.mark.parametrize(
    ("messages", "tools", "says"),
    [each for each in UNUSABLE if each[0] != "text" and "does a message contain" not in each[2]],
)
def test_an_unusable_row_of_prompts_is_named(both: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, messages: Any, tools: Any, says: str) -> None:  # fmt: skip
    _, masks = both["as items"]
    monkeypatch.setattr("groundwork.processors.load_tokenizer", lambda path: masks.tokenizer)
    args = arguments(tmp_path, {"messages": messages, "tools": tools}, apply_chat_template=True)
    with pytest.raises(ConfigError, match=rf"^--prompt-data {args.prompt_data}, row 2: .*{says}"):
        RolloutDataSource(args)


@pytest.mark.parametrize("talk", TALKS)
def test_prompt_data_has_the_text_of_serving(both: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, talk: str) -> None:  # fmt: skip
    renderer, masks = both["as JSON"]
    monkeypatch.setattr("groundwork.processors.load_tokenizer", lambda path: masks.tokenizer)
    row = {"messages": TALKS[talk], "tools": json.dumps([TOOL])}
    dataset = RolloutDataSource(arguments(tmp_path, row, apply_chat_template=True)).dataset
    assert dataset is not None
    assert masks.tokenizer.encode(dataset[1].prompt, add_special_tokens=False) == renderer.render(TALKS[talk], [TOOL])
