"""`Sample`: aligned lists, free attributes, engine answers."""

from __future__ import annotations

import pytest
import torch

from slime.args import Arguments
from slime.exceptions import SampleError
from slime.utils.types import MultimodalTypes, Sample


def test_a_response_needs_a_prompt_token_before_it() -> None:
    with pytest.raises(SampleError, match="all 2 tokens are response"):
        Sample(tokens=[1, 2], response_length=2).validate()
    Sample().validate()


@pytest.mark.parametrize("name", ["loss_mask", "rollout_log_probs", "teacher_log_probs"])
def test_validate_names_the_list(name: str) -> None:
    sample = Sample(tokens=[1, 2, 3], response_length=2)
    setattr(sample, name, [0])
    with pytest.raises(SampleError, match=f"{name} has 1 entries for 2"):
        sample.validate()


def test_validate_finds_values_that_are_not_finite() -> None:
    with pytest.raises(SampleError, match="teacher_log_probs"):
        Sample(tokens=[1, 2], response_length=1, teacher_log_probs=[float("nan")]).validate()
    with pytest.raises(SampleError, match="response_length 3"):
        Sample(tokens=[1, 2], response_length=3).validate()


def test_free_attributes_survive_the_round_trip() -> None:
    sample = Sample(index=4, tokens=[1, 2], response_length=1, status=Sample.Status.TRUNCATED, metadata={"a": 1})
    sample.tool_call_count = 3  # type: ignore[attr-defined]
    sample.spec_info.add({"spec_accept_token_num": 2, "spec_draft_token_num": 4, "completion_tokens": 8})
    data = sample.to_dict()
    assert data["status"] == "truncated"
    back = Sample.from_dict(data)
    assert vars(back) == vars(sample)
    assert back.tool_call_count == 3  # type: ignore[attr-defined]
    assert back.spec_info.spec_accept_rate == 0.5


def test_reward_value_of_a_dict() -> None:
    args = Arguments(reward_key="score")
    assert Sample(reward={"score": -1, "acc": 0}).get_reward_value(args) == -1
    assert Sample(reward=0.5).get_reward_value(args) == 0.5


@pytest.mark.parametrize(("kind", "status"), [("length", "truncated"), ("abort", "aborted"), ("stop", "completed")])
def test_engine_answer_sets_status_version_and_counters(kind: str, status: str) -> None:
    sample = Sample()
    meta = {"finish_reason": {"type": kind}, "weight_version": 3, "cached_tokens": 5, "prompt_tokens": 10}
    sample.update_from_meta_info(Arguments(), meta)
    assert (sample.status.value, sample.weight_versions) == (status, ["3"])
    assert sample.prefix_cache_info.prefix_cache_hit_rate == 0.5


def test_media_types() -> None:
    assert [kind.placeholder for kind in MultimodalTypes.all()] == ["<image>", "<video>", "<audio>"]
    image = MultimodalTypes.get("image")
    assert image is not None
    assert image.placeholder == "<image>"
    assert MultimodalTypes.get("smell") is None


def test_a_reward_dict_asks_for_its_key() -> None:
    with pytest.raises(SampleError, match="score, acc; name the entry to train on with --reward-key"):
        Sample(reward={"score": -1, "acc": 0}).get_reward_value(Arguments(reward_key=None))
    assert Sample(reward=None).get_reward_value(Arguments()) is None


def test_every_field_of_the_contract_has_its_default() -> None:
    empty = {"tokens": [], "weight_versions": [], "metadata": {}, "prompt": "", "response": "", "response_length": 0}
    none = [
        "group_index",
        "index",
        "multimodal_inputs",
        "multimodal_train_inputs",
        "label",
        "reward",
        "loss_mask",
        "rollout_log_probs",
        "rollout_routed_experts",
        "generate_function_path",
        "train_metadata",
        "rollout_id",
        "multimodal_train_input_id",
        "apply_chat_template_kwargs",
        "rollout_top_p_token_ids",
        "rollout_top_p_token_offsets",
        "teacher_log_probs",
        "custom_rm_path",
        "session_id",
    ]
    expected = empty | dict.fromkeys(none) | {"remove_sample": False, "non_generation_time": 0.0}
    expected["status"] = Sample.Status.PENDING
    values = vars(Sample())
    assert {name: values[name] for name in expected} == expected
    assert Sample().tokens is not Sample().tokens
    assert [status.value for status in Sample.Status] == ["pending", "completed", "truncated", "aborted", "failed"]


def test_tensors_and_traces_that_plugins_attach_survive() -> None:
    sample = Sample(tokens=[1, 2, 3], response_length=2)
    sample.teacher_log_probs = torch.tensor([-0.5, -1.0])
    sample.teacher_topk_indices = torch.zeros(2, 3, dtype=torch.int64)
    sample.trace = {"spans": []}  # type: ignore[attr-defined]
    sample.payload_text, sample.payload_has_system = "{}", True  # type: ignore[attr-defined]
    sample.validate()
    back = Sample.from_dict(sample.to_dict())
    assert back.teacher_log_probs is sample.teacher_log_probs
    assert "teacher_topk_indices" in vars(back)
    assert (back.trace, back.payload_text, back.payload_has_system) == ({"spans": []}, "{}", True)  # type: ignore[attr-defined]


def test_speculative_counters_only_where_the_engine_speculates() -> None:
    meta = {"spec_accept_token_num": 2, "spec_draft_token_num": 4, "spec_verify_ct": 2, "completion_tokens": 6}
    sample = Sample()
    sample.update_from_meta_info(Arguments(sglang_speculative_algorithm=None), meta)
    assert sample.spec_info == Sample.SpecInfo()
    sample.update_from_meta_info(Arguments(sglang_speculative_algorithm="EAGLE"), meta)
    assert sample.spec_info == Sample.SpecInfo.from_dict(sample.spec_info.to_dict())
    assert (sample.spec_info.spec_accept_rate, sample.spec_info.spec_accept_length) == (0.5, 3.0)
