"""Every name that method folders import is where they import it from, and is called as they call it."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from slime.observability import logging_utils as newer_logging_utils
from slime.observability.metric_utils import compute_rollout_step
from slime.ray import rollout as ray_rollout
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.data_source import DataSource
from slime.utils import http_utils, logging_utils, processing_utils
from slime.utils.types import Sample

LOGITS = "logits, *, args, unconcat_tokens, total_lengths, response_lengths"
# Names as they are imported, and the parameters that callers use; None: a name that is not called.
IMPORT_MAP: dict[str, dict[str, str | None]] = {
    "slime.rollout.base_types": {
        "RolloutFnTrainOutput": "samples, metrics=None",
        "RolloutFnEvalOutput": "data, metrics=None",
        "call_rollout_fn": "fn, *args, evaluation, **kwargs",
    },
    "slime.rollout.sglang_rollout": {
        "GenerateState": "args",
        "generate": "args, sample, sampling_params",
        "generate_and_rm": "args, sample, sampling_params, evaluation=False",
        "generate_and_rm_group": "args, group, sampling_params, evaluation=False",
        "abort": "args, rollout_id",
        "generate_rollout_async": "args, rollout_id, get_samples",
        "eval_rollout": "args, rollout_id",
        "eval_rollout_single_dataset": "args, rollout_id, cfg",
        "generate_rollout": "args, rollout_id, data_source, evaluation=False",
    },
    "slime.rollout.sft_rollout": {"generate_rollout": "args, rollout_id, data_source, evaluation=False"},
    "slime.rollout.rm_hub.math_dapo_utils": {
        "compute_score": "solution_str, ground_truth, strict_box_verify=False, pause_tokens_index=None"
    },
    "slime.rollout.rm_hub": {"grade_answer_verl": "solution_str, ground_truth"},
    "slime.rollout.rm_hub.math_utils": {
        "extract_answer": "passage",
        "grade_answer_verl": "solution_str, ground_truth",
    },
    "slime.rollout.filter_hub.base_types": {
        "DynamicFilterOutput": "keep, reason=None, keep_when_insufficient=False",
        "should_drop_dynamic_filter_output": "output, *, remaining_batch_size, target_data_size",
    },
    "slime.rollout.filter_hub.dynamic_sampling_filters": {"check_reward_nonzero_std": "args, group, **kwargs"},
    "slime.utils.mask_utils": {"MultiTurnLossMaskGenerator": 'tokenizer, tokenizer_type="qwen"'},
    "slime.rollout.data_source": {
        "DataSource": None,
        "RolloutDataSource": "args",
        "RolloutDataSourceWithBuffer": "args",
        "pop_first": "args, rollout_id, buffer, num_samples",
    },
    "slime.ray.rollout": {"compute_rollout_step": "args, rollout_id"},
    "slime.observability.metric_utils": {"compute_rollout_step": "args, rollout_id"},
    "slime.observability.logging_utils": {"log": "args, metrics, step_key"},
    "slime.utils.logging_utils": {"log": "args, metrics, step_key"},
    "slime.utils.async_utils": {"run": "coro", "get_async_loop": ""},
    "slime.utils.http_utils": {
        "post": "url, payload, max_retries=60, headers=None",
        "get": "url",
        "init_http_client": "args",
        "find_available_port": "",
        "is_port_available": "port",
        "get_host_info": "",
        "run_router": "args",
        "terminate_process": "process",
        "_wrap_ipv6": "host",
        "_http_client": None,
    },
    "slime.utils.processing_utils": {
        "load_tokenizer": "name, **kwargs",
        "load_processor": "name, **kwargs",
        "process_vision_info": "messages, processor",
        "build_processor_kwargs": "multimodal_inputs=None",
        "encode_image_for_rollout_engine": "image",
    },
    "slime.utils.misc": {
        "load_function": "path",
        "SingletonMeta": None,
        "Box": None,
        "group_by": "iterable",
        "should_run_periodic_action": "rollout_id, interval",
    },
    "slime.utils.types": {
        "Sample": None,
        "ParamInfo": "name, dtype, shape, attrs, size, src_rank",
        "RolloutBatch": None,
        "MultimodalType": "name, placeholder",
        "MultimodalTypes": None,
    },
    "slime.utils.data": {"read_file": "path"},
    "slime.utils.external_utils.command_utils": {
        "execute_train": 'train_args, num_gpus_per_node, megatron_model_type, train_script="train.py", '
        "before_ray_job_submit=None, extra_env_vars=None, config=None"
    },
    "slime.utils.arguments": {"parse_args": "add_custom_arguments=None"},
    "slime.backends.megatron_utils.loss": {
        "get_responses": f"{LOGITS}, max_seq_lens=None",
        "get_log_probs_and_entropy": f"{LOGITS}, with_entropy=False, non_loss_data=True, max_seq_lens=None",
        "get_values": f"{LOGITS}, with_entropy=False, non_loss_data=True, max_seq_lens=None",
    },
    "slime.backends.megatron_utils.cp_utils": {
        "slice_log_prob_with_cp": "log_prob, total_length, response_length",
        "all_gather_with_cp": "tensor, total_length, response_length",
        "get_sum_of_sample_mean": "total_lengths, response_lengths, loss_masks, sample_denoms=None, "
        "calculate_per_token_loss=False",
    },
    "slime.utils.ppo_utils": {
        "compute_policy_loss": "ppo_kl, advantages, eps_clip, eps_clip_high, eps_clip_c=None",
        "compute_approx_kl": "log_probs, log_probs_base, kl_loss_type, importance_ratio=None",
        "compute_log_probs": "logits, tokens, process_group",
    },
    "megatron.core": {"mpu": None},
}
# Names of the contract that live elsewhere: path, home and names of each re-export.
RE_EXPORTS = (
    (
        "slime.backends.megatron_utils.loss",
        "slime.logprobs.packed_logits",
        ("get_log_probs_and_entropy", "get_responses", "get_values"),
    ),
    ("slime.observability.logging_utils", "slime.utils.logging_utils", ("log",)),
    ("slime.ray.rollout", "slime.observability.metric_utils", ("compute_rollout_step",)),
    (
        "slime.rollout.sglang_rollout",
        "slime.rollout.generation",
        ("GenerateState", "generate", "generate_and_rm", "generate_and_rm_group"),
    ),
    (
        "slime.rollout.sglang_rollout",
        "slime.rollout.evaluation",
        ("eval_rollout", "eval_rollout_single_dataset"),
    ),
)
# Megatron takes seconds to import: its name is tested in tests/integration/test_megatron_names.py.
NAMES = [(module, name) for module, names in IMPORT_MAP.items() if module.startswith("slime") for name in names]
# Positional parameters whose names no caller uses.
FREE_NAMES = {"coro", "host", "image", "iterable", "name", "fn"}


def mismatch(expected: str, function: Any) -> str | None:
    """Why a caller that uses the parameters ``expected`` cannot call ``function``; None when it can."""
    wanted = list(inspect.signature(eval(f"lambda {expected}: 0")).parameters.values())
    offered = list(inspect.signature(function.__init__ if inspect.isclass(function) else function).parameters.values())
    if inspect.isclass(function):
        offered = offered[1:]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    places = [parameter for parameter in offered if parameter.kind in positional]
    by_name = {parameter.name: parameter for parameter in offered}
    for position, parameter in enumerate(wanted):
        if parameter.kind in positional:
            if position >= len(places):
                return f"no positional parameter {position} ({parameter.name})"
            found = places[position]
            if found.name != parameter.name and parameter.name not in FREE_NAMES:
                return f"parameter {position} is {found.name}, not {parameter.name}"
        elif parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            if not any(other.kind == parameter.kind for other in offered):
                return f"does not take {parameter}"
            continue
        elif parameter.name not in by_name:
            return f"no keyword {parameter.name}"
        else:
            found = by_name[parameter.name]
        if parameter.default is not inspect.Parameter.empty and found.default != parameter.default:
            return f"{parameter.name} has default {found.default!r}, not {parameter.default!r}"
    names = {parameter.name for parameter in wanted}
    for position, parameter in enumerate(places):
        if position >= len(wanted) and parameter.default is inspect.Parameter.empty and parameter.name not in names:
            return f"also requires {parameter.name}"
    for parameter in offered:
        required = parameter.kind == inspect.Parameter.KEYWORD_ONLY and parameter.default is inspect.Parameter.empty
        if required and parameter.name not in names:
            return f"also requires the keyword {parameter.name}"
    return None


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[f"{module}.{name}" for module, name in NAMES])
def test_every_name_of_the_map_is_there_and_takes_what_callers_give(module: str, name: str) -> None:
    found = getattr(importlib.import_module(module), name)
    parameters = IMPORT_MAP[module][name]
    if parameters is not None:
        assert mismatch(parameters, found) is None


def test_a_sample_appends_tokens_as_callers_ask() -> None:
    parameters = (
        "self, args=None, *, tokens=None, log_probs=None, trainable=True, meta_info=None, text=None, "
        "update_terminal_info=True"
    )
    assert mismatch(parameters, Sample.append_response_tokens) is None


def test_the_comparison_of_signatures_sees_differences() -> None:
    assert mismatch("a, b=1", lambda a, b=1, c=2: 0) is None
    assert mismatch("a, b=1", lambda a, b=2: 0) == "b has default 2, not 1"
    assert mismatch("a", lambda b: 0) == "parameter 0 is b, not a"
    assert mismatch("a", lambda a, b: 0) == "also requires b"
    assert mismatch("a, *, b", lambda a, b: 0) is None
    assert mismatch("a, *, b", lambda a: 0) == "no keyword b"
    assert mismatch("a", lambda a, *, c: 0) == "also requires the keyword c"
    assert mismatch("a, **kw", lambda a: 0) == "does not take **kw"


@pytest.mark.parametrize("name", ["generate", "generate_and_rm", "generate_and_rm_group", "abort", "eval_rollout"])
def test_what_is_awaited_is_asynchronous(name: str) -> None:
    assert inspect.iscoroutinefunction(getattr(importlib.import_module("slime.rollout.sglang_rollout"), name))
    assert inspect.iscoroutinefunction(http_utils.post)


def test_the_methods_of_this_repository_import_nothing_that_the_map_lacks(repository: Path) -> None:
    text = "".join(path.read_text() for path in (repository / "extensions").rglob("*.py"))
    for module, names in re.findall(r"^from (slime[\w.]*) import ([\w, ]+)$", text, re.MULTILINE):
        for name in names.split(", "):
            assert name in IMPORT_MAP.get(module, {}), f"{module}.{name} is not a name of the contract"


@pytest.mark.parametrize(("path", "home", "names"), RE_EXPORTS)
def test_a_re_export_is_the_thing_itself(path: str, home: str, names: tuple[str, ...]) -> None:
    for name in names:
        assert name in IMPORT_MAP[path]
        assert getattr(importlib.import_module(path), name) is getattr(importlib.import_module(home), name)


def test_moved_names_are_one_thing() -> None:
    assert ray_rollout.compute_rollout_step is compute_rollout_step
    assert newer_logging_utils.log is logging_utils.log
    args = SimpleNamespace(
        wandb_always_use_train_step=True, rollout_batch_size=4, n_samples_per_prompt=2, global_batch_size=2
    )
    assert compute_rollout_step(args, 3) == 12
    args.wandb_always_use_train_step = False
    assert compute_rollout_step(args, 3) == 3


async def test_a_client_that_a_plugin_puts_in_place_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        async def request(self, method: str, url: str, **rest: Any) -> Any:
            return SimpleNamespace(status_code=200, json=lambda: {"method": method, "url": url, **rest})

    monkeypatch.setattr(http_utils, "_http_client", Client())
    answer = await http_utils.post("http://engine/generate", {"text": "a"}, headers={"X-SMG-Routing-Key": "7"})
    assert answer["url"] == "http://engine/generate"
    assert (answer["json"], answer["headers"]) == ({"text": "a"}, {"X-SMG-Routing-Key": "7"})


def test_a_data_source_without_a_length_is_a_data_source() -> None:
    methods = dict.fromkeys(("get_samples", "add_samples", "save", "load"), lambda self, *rest: None)
    assert type("Source", (DataSource,), methods)()
    assert DataSource.__abstractmethods__ == set(methods)


def test_outputs_have_no_metrics_unless_given() -> None:
    assert RolloutFnTrainOutput(samples=[]).metrics is None
    assert RolloutFnEvalOutput(data={}).metrics is None


def test_media_of_a_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [{"type": "image", "image": Image.new("RGB", (60, 56))}, {"type": "video", "video": "film.mp4"}]
    messages = [{"role": "user", "content": parts}]
    monkeypatch.setitem(sys.modules, "qwen_vl_utils", None)
    with pytest.raises(ImportError, match="pip install qwen-vl-utils"):
        processing_utils.process_vision_info(messages, None)
    calls = []

    def found(messages: Any, image_patch_size: int) -> tuple[None, list[str]]:
        calls.append((messages[0]["content"], image_patch_size))
        return None, ["film"]

    monkeypatch.setitem(sys.modules, "qwen_vl_utils", SimpleNamespace(process_vision_info=found))
    media = processing_utils.process_vision_info(messages, None)
    assert [image.size for image in media["images"]] == [(56, 56)]
    assert media["videos"] == ["film"]
    part_of = SimpleNamespace(patch_size=16, merge_size=2, size={"shortest_edge": 1024, "longest_edge": 65536})
    media = processing_utils.process_vision_info(messages, SimpleNamespace(image_processor=part_of))
    assert [image.size for image in media["images"]] == [(64, 64)]
    assert calls == [([parts[1]], 14), ([parts[1]], 16)]


def test_the_loss_helpers_are_importable_without_megatron() -> None:
    source = Path(inspect.getfile(importlib.import_module("slime.backends.megatron_utils.loss"))).read_text()
    assert "import megatron" not in source
    assert "from megatron" not in source
