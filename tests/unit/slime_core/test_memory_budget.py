"""The memory budget: sizes of models, shares of ranks and engines, whose memory counts, and what is refused."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3_5TextConfig, Qwen3MoeConfig

from slime.args import Arguments
from slime.arguments.memory_budget import budget_of
from slime.arguments.memory_budget.budget import checkpoint_bytes, engine_plan, fitting, fix, layout
from slime.arguments.memory_budget.gpu import CONTEXT, DRIVER, GIB, GpuMemory, Need, gpu_memory, smallest_gpu
from slime.arguments.memory_budget.shape import Shape, shape_of_folder
from slime.arguments.memory_budget.trainer import step_tokens, trainer_need
from slime.arguments.parser import Parser, build_parser, parse_args, read_arguments
from slime.arguments.trainer import PACK_BYTES
from tests.helpers.arguments import refusal
from tests.helpers.checkpoints import config_only

QWEN3_4B = Shape(
    layers=36, hidden=2560, ffn=9728, heads=32, kv_heads=8, head_dim=128, vocab=151936, tied=True, full_layers=36, qk_norm=True
)  # fmt: skip
MOE = Shape(
    layers=48, hidden=2048, ffn=768, heads=32, kv_heads=4, head_dim=128, vocab=151936, tied=False, experts=128,
    active_experts=8, full_layers=48, qk_norm=True,
)  # fmt: skip
EIGHT_GPUS = (
    "--device cuda --train-backend fsdp --actor-num-gpus-per-node 4 --rollout-num-gpus 2 --rollout-num-gpus-per-engine 2 --num-gpus 8 "
    "--prm-enable --prm-num-gpus 2 --prm-num-gpus-per-engine 2 --use-dynamic-batch-size --max-tokens-per-gpu 32768 "
    "--gradient-checkpointing --rollout-max-context-len 32768 --sglang-context-length 32768 --sglang-mem-fraction-static 0.8 "
    "--rollout-batch-size 16 --num-rollout 1 --disable-rollout-global-dataset"
)
ONE_GPU = (
    "--device cuda --train-backend fsdp --share-gpu --actor-num-gpus-per-node 1 --rollout-num-gpus 1 --num-gpus 1 --prm-enable "
    "--prm-num-gpus 1 --use-lora --use-dynamic-batch-size --max-tokens-per-gpu 8192 --gradient-checkpointing "
    "--rollout-max-context-len 8192 --sglang-context-length 8192 --sglang-mem-fraction-static 0.9 --sglang-max-total-tokens 12288 "
    "--rollout-batch-size 16 --num-rollout 1 --disable-rollout-global-dataset"
)


def memory(gib: float) -> GpuMemory:
    return GpuMemory(gib * GIB, "test")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return config_only(tmp_path / "Qwen3-4B", max_position_embeddings=40960)


@functools.cache
def parser() -> Parser:
    return build_parser()


def derived(words: str, folder: Path, **changes: Any) -> Arguments:
    args, problems = read_arguments(parser(), [*words.split(), "--hf-checkpoint", str(folder)])
    assert problems == []
    return args.changed(**changes)


def sizes(need: Need) -> dict[str, float]:
    return {part.name: part.size for part in need.parts}


# Models


def test_experts_and_linear_attention_are_counted_as_transformers_builds_them(tmp_path: Path) -> None:
    moe = Qwen3MoeConfig(
        vocab_size=512, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64, tie_word_embeddings=False,
    )  # fmt: skip
    assert counted(moe, tmp_path / "moe") == pytest.approx(built(moe), rel=1e-12)
    linear = Qwen3_5TextConfig(
        vocab_size=1024, hidden_size=1024, intermediate_size=3584, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=2, head_dim=256, linear_num_value_heads=16, tie_word_embeddings=True,
    )  # fmt: skip
    assert counted(linear, tmp_path / "linear", model_type="qwen3_5") == pytest.approx(built(linear), rel=0.02)


def built(config: Any) -> int:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def counted(config: Any, folder: Path, **changes: str) -> int:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(json.loads(config.to_json_string(use_diff=False)) | changes))
    shape = shape_of_folder(str(folder))
    assert shape is not None
    return shape.parameters


def test_published_sizes_are_those_of_the_shapes() -> None:
    assert QWEN3_4B.parameters == 4_022_468_096
    assert MOE.parameters == 30_532_122_624
    assert shape_of_folder("nowhere") is None


# The trainer


def test_training_a_model_of_4b_on_four_gpus_takes_33_to_36_gb(folder: Path) -> None:
    args = derived(EIGHT_GPUS, folder)
    total = trainer_need(args, QWEN3_4B, 4).total + DRIVER
    assert 33e9 < total < 36e9
    eight = replace(QWEN3_4B, hidden=4096, ffn=12288, tied=False)
    assert eight.parameters == 8_190_735_360
    assert trainer_need(args, eight, 4).total + DRIVER == pytest.approx(60e9, rel=0.05)


def test_what_changes_the_trainers_memory(folder: Path) -> None:
    args = derived(EIGHT_GPUS, folder)
    base = sizes(trainer_need(args, QWEN3_4B, 4))
    of_two = sizes(trainer_need(args, QWEN3_4B, 2))
    assert of_two["weights"] == 2 * base["weights"] == 2 * QWEN3_4B.parameters
    assert of_two["activations"] == base["activations"]

    def changed(**values: Any) -> dict[str, float]:
        return sizes(trainer_need(args.changed(**values), QWEN3_4B, 4))

    assert changed(fsdp_cpu_offload=True)["weights"] == 0
    assert changed(use_kl_loss=True)["reference"] == 2 * QWEN3_4B.parameters / 4
    assert changed(gradient_checkpointing=False)["activations"] > 10 * base["activations"]
    assert base["push buffers"] == 2 * QWEN3_4B.embedding + 2**29
    assert changed(update_weight_buffer_size=2**30)["push buffers"] == 2 * 2**30
    assert changed(share_gpu=True)["push buffers"] == changed(update_weight_transport="disk")["push buffers"] == 0
    assert changed(update_weight_transport="shared")["push buffers"] == PACK_BYTES
    lora = changed(use_lora=True, lora_rank=16)
    adapters = QWEN3_4B.adapters(16)
    assert lora["weights"] == (2 * QWEN3_4B.parameters + 4 * adapters) / 4
    assert lora["gradients and moments"] == 12 * adapters / 4
    plugin = folder / "losses.py"
    plugin.write_text(
        "from marks import from_response_rows\nimport marks\ndef whole(): ...\n"
        "@from_response_rows\ndef rows(): ...\n@marks.from_response_rows\ndef others(): ...\n"
    )
    totals = {}
    for name in ("whole", "rows", "others", "nowhere"):
        custom = changed(loss_type="custom_loss", custom_loss_function_path=f"{plugin}:{name}")
        totals[name] = sum(custom.values())
    assert totals["rows"] == totals["others"] == totals["nowhere"]
    assert totals["whole"] > totals["rows"] + 45 * GIB
    path = "topk_distillation_loss.topk_distillation_loss_function"
    topk = changed(loss_type="custom_loss", distill_topk=50, custom_loss_function_path=path)
    assert sum(topk.values()) < totals["rows"] + GIB


@pytest.mark.parametrize(
    ("flags", "size"),
    [
        ({}, 2 * QWEN3_4B.embedding + 2**29),  # tied: one tensor is larger than a slot
        ({"update_weight_buffer_size": 2**20}, 2 * QWEN3_4B.embedding + 2**20),
        ({"update_weight_buffer_size": 2**30}, 2 * QWEN3_4B.embedding + 2**29),
        ({"canary_engine": True}, 2 * (2 * QWEN3_4B.embedding + 2**29)),
    ],
)
def test_slots_that_an_engine_reads_stay_on_the_gpu_while_the_trainer_is_away(
    folder: Path, flags: dict[str, Any], size: int
) -> None:
    args = derived(ONE_TRAINER, folder).changed(**flags)
    need = trainer_need(args, QWEN3_4B, 1)
    assert sizes(need)["push buffers"] == size
    assert need.away == size + CONTEXT
    untied = trainer_need(args, replace(QWEN3_4B, tied=False), 1)
    ends = 2 if args.canary_engine else 1
    assert sizes(untied)["push buffers"] == ends * 2 * 2 * QWEN3_4B.embedding


NOTHING = {"unchecked_layers": 0, "kept_attention_layers": 0}
ONE_TRAINER = (
    "--device cuda --train-backend fsdp --colocate --actor-num-gpus-per-node 1 --rollout-num-gpus 1 --num-gpus 1 "
    "--use-dynamic-batch-size --max-tokens-per-gpu 8192 --gradient-checkpointing --rollout-max-context-len 8192 "
    "--sglang-context-length 8192 --rollout-batch-size 16 --num-rollout 1 --disable-rollout-global-dataset"
)


def test_one_card_of_80_gb_plans_whole_weights_of_4b_and_its_unchecked_layers(folder: Path) -> None:
    budget = budget_of(derived(ONE_TRAINER, folder), memory(80))
    assert (budget.problems, budget.warnings) == ((), ())
    unchecked, attention = budget.layers["unchecked_layers"], budget.layers["kept_attention_layers"]
    assert 0 < unchecked < 12
    assert unchecked + attention == 36
    line = f"checkpointing: of 36 layers {unchecked} stay unchecked (--unchecked-layers), {attention} keep attention's"
    assert any(line in text for text in budget.lines)
    (row,) = budget.rows
    assert row.total + row.doubt <= 0.95 * 80 * GIB
    one_more = {"unchecked_layers": unchecked + 1, "kept_attention_layers": 35 - unchecked}
    (more,) = budget_of(derived(ONE_TRAINER, folder, **one_more), memory(80)).rows
    assert more.total + more.doubt > 0.95 * 80 * GIB


def test_attention_is_kept_before_layers_are_unchecked_and_flags_win(folder: Path) -> None:
    def layers(gib: float, **changes: Any) -> tuple[int, int]:
        found = budget_of(derived(ONE_TRAINER, folder, **changes), memory(gib)).layers
        return found["unchecked_layers"], found["kept_attention_layers"]

    counts = [layers(gib) for gib in (70.0, 75.0, 80.0, 200.0)]
    assert counts[0] == (0, 0)
    assert counts[1][0] == 0
    assert 0 < counts[1][1] < 36
    assert counts[2][0] + counts[2][1] == 36
    assert counts[3] == (36, 0)
    assert layers(80, unchecked_layers=0) == (0, 36)
    assert layers(80, kept_attention_layers=0)[0] > layers(80)[0]
    assert layers(80, unchecked_layers=2, kept_attention_layers=3) == (2, 3)


def test_fused_kernels_change_what_fits(folder: Path) -> None:
    plain = budget_of(derived(ONE_TRAINER, folder), memory(80)).layers
    liger = budget_of(derived(ONE_TRAINER, folder, fused_kernels="liger"), memory(80)).layers
    assert liger["unchecked_layers"] > plain["unchecked_layers"]
    compiled = budget_of(derived(ONE_TRAINER, folder, fused_kernels="compile"), memory(80)).layers
    assert compiled["kept_attention_layers"] == 0 < compiled["unchecked_layers"]


def test_layers_are_planned_only_where_the_plan_knows_enough(folder: Path) -> None:
    unknown = ONE_TRAINER.replace("--rollout-max-context-len 8192 --sglang-context-length 8192 ", "")
    only_steps = f"{unknown} --rollout-max-response-len 1024"
    for words in (unknown, only_steps, f"{only_steps} --rollout-max-prompt-len 1024"):  # no data have these prompts
        budget = budget_of(derived(words, folder), memory(80))
        assert budget.layers == NOTHING
        assert any("none planned: no flag bounds the samples" in line for line in budget.lines)
    unknown = unknown.replace("--use-dynamic-batch-size --max-tokens-per-gpu 8192 ", "")
    only_response = derived(f"{unknown} --rollout-max-response-len 1024", folder)
    assert step_tokens(only_response) == 1024
    assert budget_of(only_response, memory(80)).layers == NOTHING
    answered = derived(f"{only_steps} --rollout-max-prompt-len 1024", folder, rollout_global_dataset=True)
    assert budget_of(answered, memory(80)).layers != NOTHING
    assert budget_of(answered.changed(custom_generate_function_path="a.b"), memory(80)).layers == NOTHING
    assert budget_of(derived(ONE_TRAINER, folder, debug_train_only=True), memory(80)).layers == NOTHING
    shared = derived(ONE_GPU, folder, sglang_max_total_tokens=None)  # the engine would have a smaller cache
    assert budget_of(shared, memory(80)).layers == NOTHING
    assert budget_of(derived(ONE_TRAINER, folder, gradient_checkpointing=False), memory(200)).layers == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"attn_implementation": "eager"},
        {"pack_sequences": False},
        {"train_dtype": "float32"},
        {"deterministic_mode": True},
    ],
    ids=str,
)
def test_no_layer_is_planned_beside_attention_whose_memory_is_not_counted(
    folder: Path, changes: dict[str, Any]
) -> None:
    args = derived(ONE_TRAINER, folder)
    assert budget_of(args, memory(200)).layers == {"unchecked_layers": 36, "kept_attention_layers": 0}
    assert budget_of(args.changed(**changes), memory(200)).layers == NOTHING
    given = budget_of(args.changed(**changes, unchecked_layers=2), memory(200)).layers
    assert given == {"unchecked_layers": 2, "kept_attention_layers": 0}


@pytest.mark.parametrize(
    "fields",
    [
        {"layer_types": ["full_attention"] * 35 + ["sliding_attention"]},
        {"layer_types": None, "sliding_window": 4096, "use_sliding_window": True},
        {"head_dim": 512},
    ],
    ids=["types", "window", "head"],
)
def test_no_layer_is_planned_for_windows_and_heads_without_a_kernel(folder: Path, fields: dict[str, Any]) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    assert budget_of(derived(ONE_TRAINER, folder), memory(400)).layers != NOTHING
    file.write_text(json.dumps(config | fields))
    assert budget_of(derived(ONE_TRAINER, folder), memory(400)).layers == NOTHING
    file.write_text(json.dumps(config | {"layer_types": None, "sliding_window": 4096, "use_sliding_window": False}))
    assert budget_of(derived(ONE_TRAINER, folder), memory(400)).layers != NOTHING


def test_layers_do_not_fill_what_other_processes_hold(folder: Path) -> None:
    args = derived(ONE_TRAINER, folder)
    whole = budget_of(args, memory(100))
    beside = budget_of(args, replace(memory(100), held=15 * GIB))
    plan = layout(args.changed(**beside.layers), 100 * GIB, held=15 * GIB)
    assert plan is not None
    assert plan.rows[0].total + plan.rows[0].doubt <= 0.95 * 100 * GIB - 15 * GIB
    assert 0 < beside.layers["unchecked_layers"] < whole.layers["unchecked_layers"]
    assert any("other processes hold 15.0 GiB" in line for line in beside.lines)
    full = budget_of(args, replace(memory(100), held=60 * GIB))
    assert full.layers == NOTHING
    assert full.problems == ()  # what holds it may be gone at the start


def test_layers_are_planned_on_cards_that_the_driver_can_answer_for(folder: Path) -> None:
    def layers(source: str, **changes: Any) -> dict[str, int]:
        return dict(budget_of(derived(ONE_TRAINER, folder, **changes), GpuMemory(90 * GIB, source)).layers)

    seen, said = "nvidia-smi", "--gpu-memory-gb"
    assert layers(seen) == layers(said) != NOTHING
    for several in ({"num_nodes": 2, "actor_num_nodes": 2, "num_gpus_per_node": 1}, {"ray_address": "head:6379"}):
        assert layers(seen, **several) == NOTHING != layers(said, **several)
    for outside in ({"rollout_external_engine_addrs": ["host:1"]}, {"prm_router_ip": "host"}):
        assert layers(seen, **outside) == layers(said, **outside) == NOTHING


def test_small_micro_batches_keep_no_attention(folder: Path) -> None:
    small = {"rollout_max_context_len": 4096, "sglang_context_length": 4096, "max_tokens_per_gpu": 4096}
    layers = budget_of(derived(ONE_TRAINER, folder, **small), memory(80)).layers
    assert layers["kept_attention_layers"] == 0 < layers["unchecked_layers"]
    given = budget_of(derived(ONE_TRAINER, folder, **small, kept_attention_layers=4), memory(80)).layers
    assert given["kept_attention_layers"] == 4


def test_counts_that_do_not_fit_are_refused_with_smaller_ones(folder: Path) -> None:
    words = f"{ONE_TRAINER} --unchecked-layers 36"
    (problem, *more) = budget_of(derived(words, folder), memory(80)).problems
    assert not more
    assert "--unchecked-layers 4" in problem
    assert budget_of(derived(words, folder, unchecked_layers=4), memory(80)).problems == ()


def test_a_start_takes_the_planned_layers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*ONE_TRAINER.split(), "--hf-checkpoint", str(folder), "--gpu-memory-gb", "80"]
    expected = budget_of(derived(ONE_TRAINER, folder), memory(80)).layers
    args = parse_args(words)
    assert {name: getattr(args, name) for name in expected} == expected
    given = parse_args([*words, "--unchecked-layers", "1", "--kept-attention-layers", "2"])
    assert (given.unchecked_layers, given.kept_attention_layers) == (1, 2)


@pytest.mark.parametrize(("cap", "context", "tokens"), [(32768, 8192, 32768), (8192, 32768, 32768)])
def test_a_sample_above_the_cap_is_a_micro_batch_of_its_own(folder: Path, cap: int, context: int, tokens: int) -> None:
    args = derived(
        EIGHT_GPUS, folder, max_tokens_per_gpu=cap, rollout_max_context_len=context, sglang_context_length=context
    )
    assert step_tokens(args) == tokens


@pytest.mark.parametrize(("tensor", "stages", "experts", "ranks"), [(1, 1, 8, 8), (2, 2, 2, 8), (1, 1, 1, 1)])
def test_megatrons_parts_add_up_to_the_model(folder: Path, tensor: int, stages: int, experts: int, ranks: int) -> None:
    args = derived(
        EIGHT_GPUS,
        folder,
        train_backend="megatron",
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=stages,
        expert_model_parallel_size=experts,
    )
    parts = sizes(trainer_need(args, MOE, ranks))
    dense, of_experts = MOE.layers * MOE.dense_layer, MOE.layers * MOE.experts_of_layer
    ends = MOE.embedding * (1 if stages > 1 else 2)  # of a first or a last stage
    held = (dense / stages + ends) / tensor + of_experts / (stages * experts * tensor)
    assert parts["weights"] == pytest.approx(2 * held)
    assert parts["gradients"] == pytest.approx(4 * held)
    copies = ranks // (tensor * stages)
    expert_copies = ranks // (stages * experts * tensor)
    optimizer = 12 * (
        (dense / stages + ends) / tensor / copies + of_experts / (stages * experts * tensor) / expert_copies
    )
    assert parts["optimizer"] == pytest.approx(optimizer)


def test_without_a_bound_of_a_sample_the_budget_says_so(folder: Path) -> None:
    words = EIGHT_GPUS.replace("--rollout-max-context-len 32768 --sglang-context-length 32768 ", "")
    words = words.replace("--use-dynamic-batch-size --max-tokens-per-gpu 32768 ", "")
    lines = budget_of(derived(words, folder), memory(80)).lines
    assert any("no flag bounds a sample" in line for line in lines)
    assert step_tokens(derived(f"{words} --rollout-max-response-len 512", folder)) == 512


def test_fused_kernels_of_megatron_keep_less(folder: Path) -> None:
    args = derived(EIGHT_GPUS, folder, train_backend="megatron", gradient_checkpointing=False)

    def activations(kernels: str) -> float:
        return sizes(trainer_need(args.changed(transformer_impl=kernels), QWEN3_4B, 4))["activations"]

    assert 0.6 < activations("transformer_engine") / activations("local") < 0.75


# Engines


def engine(folder: Path, free: float, **changes: Any) -> Any:
    args = derived(ONE_GPU, folder, **changes)
    return engine_plan(args, QWEN3_4B, role="judge", ranks=1, capacity=24 * GIB, free=free * GIB, scores=False)


def test_the_cache_is_what_the_fraction_leaves_of_what_is_free(folder: Path) -> None:
    weights, cell = 2 * QWEN3_4B.parameters, 2 * 36 * 8 * 128 * 2
    plan = engine(folder, 20, sglang_max_total_tokens=None)
    assert plan.cache_tokens == int((0.9 * (20 * GIB - CONTEXT) - weights) / cell)
    assert engine(folder, 20).cache_tokens == 12288
    half = engine(folder, 20, sglang_max_total_tokens=None, sglang_kv_cache_dtype="fp8_e4m3").cache_tokens
    assert half // 2 == plan.cache_tokens
    assert engine(folder, 20, sglang_max_total_tokens=None, sglang_mem_fraction_static=0.3).cache_tokens == 0


def test_linear_attention_has_states_beside_its_cache(folder: Path) -> None:
    shape = replace(QWEN3_4B, full_layers=9)
    args = derived(ONE_GPU, folder, sglang_max_total_tokens=None)
    plan = engine_plan(args, shape, role="judge", ranks=1, capacity=24 * GIB, free=20 * GIB, scores=False)
    rest = 0.9 * (20 * GIB - CONTEXT) - 2 * shape.parameters
    assert plan.cache_tokens == int(rest / 1.9 / (2 * 9 * 8 * 128 * 2))
    fixed = args.changed(sglang_max_mamba_cache_size=10)
    plan = engine_plan(fixed, shape, role="judge", ranks=1, capacity=24 * GIB, free=20 * GIB, scores=False)
    assert plan.cache_tokens == int((rest - 10 * shape.state_bytes(1)) / (2 * 9 * 8 * 128 * 2))


def test_graphs_and_the_logits_of_a_teacher_count(folder: Path) -> None:
    args = derived(ONE_GPU, folder)

    def parts(scores: bool, **changes: Any) -> dict[str, float]:
        values = args.changed(**changes)
        given = {"role": "rollout", "ranks": 1, "capacity": 24 * GIB, "free": 20 * GIB}
        return sizes(engine_plan(values, QWEN3_4B, scores=scores, **given).need)

    assert parts(True)["workspace"] - parts(False)["workspace"] == pytest.approx(6 * 2048 * 151936)
    short = {"sglang_chunked_prefill_size": 1024}
    assert parts(True, **short)["workspace"] - parts(False, **short)["workspace"] == pytest.approx(6 * 1024 * 151936)
    assert parts(False, sglang_disable_cuda_graph=True)["graphs"] == 0
    assert 0.3 * GIB < parts(False)["graphs"] < GIB


def test_an_engine_that_shares_a_gpu_finds_what_the_others_leave(folder: Path) -> None:
    args = derived(ONE_GPU, folder, sglang_max_total_tokens=None, sglang_mem_fraction_static=0.5)
    plan = layout(args, 48 * GIB)
    assert plan is not None
    rollout, judge = plan.caches
    assert rollout.tokens > 2 * judge.tokens > 0
    assert rollout.again < rollout.tokens


def test_roles_start_together_where_each_cache_is_bounded_and_all_fit_into_an_engines_share(folder: Path) -> None:
    args = derived(ONE_GPU, folder)
    plan = layout(args, 45 * GIB)
    assert plan is not None
    (row,) = plan.rows
    needed = (row.total + row.doubt) / GIB / 0.9  # --sglang-mem-fraction-static
    assert budget_of(args, memory(needed + 0.01)).together
    assert not budget_of(args, memory(needed - 0.01)).together
    assert not budget_of(args, replace(memory(needed + 0.01), held=0.1 * GIB)).together, "others hold some of it"
    assert not budget_of(args.changed(sglang_max_total_tokens=None), memory(800)).together, (
        "an engine takes what is free"
    )
    assert not budget_of(derived(EIGHT_GPUS, folder), memory(800)).together, "nobody shares a GPU there"
    assert budget_of(args, memory(800)).derived["start_together"]


def test_a_start_and_its_dry_run_have_the_same_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*ONE_GPU.split(), "--hf-checkpoint", str(folder), "--gpu-memory-gb", "800"]
    monkeypatch.setattr("slime.arguments.dry_run.missing_devices", lambda args: [])
    with pytest.raises(SystemExit) as ended:
        parse_args([*words, "--dry-run"])
    assert ended.value.code == 0
    assert "starts   1. rollout + judge + actor" in capsys.readouterr().out
    assert parse_args(words).start_together
    assert not parse_args([*words[:-1], "38"]).start_together


def test_roles_that_alternate_need_the_larger_of_them(folder: Path) -> None:
    words = EIGHT_GPUS.replace("--rollout-num-gpus 2 ", "--colocate ").replace("--num-gpus 8", "--num-gpus 6")
    both = layout(derived(words, folder), 80 * GIB)
    stays = layout(derived(f"{words} --no-offload-rollout --no-offload-train", folder), 80 * GIB)
    assert both is not None
    assert stays is not None
    actor, rollout = both.rows[0].needs
    assert (actor.role, rollout.role) == ("actor", "rollout")
    assert both.rows[0].total == max(actor.total + rollout.away, rollout.total + actor.away) + DRIVER
    assert stays.rows[0].total == sum(need.total for need in stays.rows[0].needs) + DRIVER


# The verdict


def test_a_plan_that_fits_says_so(folder: Path) -> None:
    budget = budget_of(derived(EIGHT_GPUS, folder), memory(80))
    assert (budget.problems, budget.warnings) == ((), ())
    text = "\n".join(budget.lines)
    for word in (
        "GPU 0-3",
        "GPU 4-5",
        "GPU 6-7",
        "weights",
        "moments",
        "activations",
        "logits",
        "cache",
        "graphs",
        ": fits",
    ):
        assert word in text


def test_a_plan_that_cannot_fit_is_refused_with_lines_that_do(folder: Path) -> None:
    args = derived(EIGHT_GPUS, folder)
    (problem, *more) = budget_of(args, memory(24)).problems
    assert not more
    needs = r"GPU 0-3 needs 3\d\.\d GiB \(give or take 3\.\d\) and has 24\.0 \(test\): actor activations "
    assert re.match(needs, problem)
    offered = problem.split("each of these alone fits: ")[1].split(", or ")
    assert "--max-tokens-per-gpu 16384" not in offered  # the context alone has 32768 tokens
    assert "--use-lora" in offered
    for words in offered:
        changed = derived(f"{EIGHT_GPUS} {words}", folder)
        assert budget_of(changed, memory(24)).problems == ()


def test_within_the_uncertainty_a_plan_is_a_warning(folder: Path) -> None:
    args = derived(EIGHT_GPUS, folder)
    for size in (30.5, 35.5):
        budget = budget_of(args, memory(size))
        assert budget.problems == ()
        assert budget.warnings[0].startswith("GPU 0-3 needs 3")
    assert budget_of(args, memory(29.0)).problems
    assert budget_of(args, memory(38.0)).warnings == ()


def test_a_cache_smaller_than_a_context_is_refused(folder: Path) -> None:
    args = derived(ONE_GPU, folder, sglang_max_total_tokens=4096)
    problems = budget_of(args, memory(80)).problems
    assert [problem.split(";")[0] for problem in problems] == [
        f"the {role} engine's cache holds 4096 tokens, but a context has 8192" for role in ("rollout", "judge")
    ]
    assert "--sglang-max-total-tokens 8192" in problems[0]
    half = derived(ONE_GPU, folder, sglang_mem_fraction_static=0.2)
    assert "cache holds 0 tokens, but a context has 8192" in budget_of(half, memory(40)).problems[0]


def test_an_engine_that_could_not_come_back_is_refused(folder: Path) -> None:
    """At its start it had the GPU for itself; beside the others its share of what is free is too small."""
    args = derived(ONE_GPU, folder, sglang_mem_fraction_static=0.5)
    (problem, *_) = budget_of(args, memory(38)).problems
    assert "tokens when it restarts while the others run, but a context has 8192" in problem


def test_where_no_single_change_fits_the_refusal_says_so(folder: Path) -> None:
    (problem, *_) = budget_of(derived(ONE_GPU, folder), memory(8)).problems
    assert problem.endswith("no single change makes it fit; use a smaller model, or more or larger GPUs")


def test_a_change_is_offered_when_it_fits_only(folder: Path) -> None:
    args = derived(EIGHT_GPUS, folder)
    assert fitting(args, lambda _: False) == []
    assert fitting(args, lambda changed: changed.max_tokens_per_gpu == 4096) == [fix(max_tokens_per_gpu=4096)]


def test_on_a_cpu_and_without_a_shape_no_budget_is_made(folder: Path, tmp_path: Path) -> None:
    words = EIGHT_GPUS.replace("--device cuda", "--device cpu").replace("--sglang-mem-fraction-static 0.8 ", "")
    assert budget_of(derived(words, folder), memory(1)).lines == ()
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    assert "neither config.json nor flags" in budget_of(derived(EIGHT_GPUS, tmp_path / "empty"), memory(80)).lines[0]
    assert "--gpu-memory-gb N computes it" in budget_of(derived(EIGHT_GPUS, folder), None).lines[0]


def test_the_trainer_refuses_at_its_start(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*EIGHT_GPUS.split(), "--hf-checkpoint", str(folder)]
    said = refusal(capsys, [*words, "--gpu-memory-gb", "16"])
    assert re.search(r"GPU 0-3 needs 3\d\.\d GiB \(give or take 3\.\d\) and has 16\.0 \(--gpu-memory-gb\)", said)
    assert "--gpu-memory-gb -1: give the GiB of one GPU" in refusal(capsys, [*words, "--gpu-memory-gb", "-1"])


# The machine


SMI = "0, GPU-aaaa-1, 81559, 81000\n1, GPU-bbbb-2, 24564, 4\n2, GPU-cccc-3, [N/A], [N/A]\n3, GPU-dddd-4, 81559, [N/A]\n"


@pytest.mark.parametrize(
    ("visible", "mib", "left"),
    [
        (None, 24564, 0),
        ("0", 81559, 559),
        ("GPU-aaaa", 81559, 559),
        ("1", 24564, 24560),
        ("0,1", 24564, 559),
        ("3", 81559, 0),
        ("MIG-1234", None, None),
        ("2", None, None),
    ],
)
def test_the_smallest_gpu_that_the_run_may_see_counts(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, mib: int | None, left: int | None
) -> None:
    answer = SimpleNamespace(returncode=0, stdout=SMI)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = smallest_gpu(environment)
    assert (found and found.size) == (None if mib is None else mib * 2**20)
    assert (found and found.size - found.held) == (None if left is None else left * 2**20)


def test_what_is_given_wins_over_the_driver_and_that_over_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    args = Arguments(device="cuda", gpu_memory_gb=None)
    found: list[GpuMemory | None] = [None]
    monkeypatch.setattr("slime.arguments.memory_budget.gpu.smallest_gpu", lambda _: found[0])
    assert gpu_memory(args) is None
    assert gpu_memory(args, "profile gpu8", 80.0) == GpuMemory(80 * GIB, "profile gpu8; this machine has no GPU")
    found[0] = GpuMemory(5 * GIB, "nvidia-smi", held=GIB)
    assert gpu_memory(args, "profile gpu8", 80.0) == found[0]
    args.gpu_memory_gb = 48.0
    assert gpu_memory(args) == GpuMemory(48 * GIB, "--gpu-memory-gb")
    args.device = "cpu"
    assert gpu_memory(args) is None


# Disk


def test_checkpoints_are_twelve_bytes_a_parameter_and_their_disk_is_checked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = derived(f"{EIGHT_GPUS} --save {tmp_path / 'save'} --save-interval 10", folder)
    size = checkpoint_bytes(args, QWEN3_4B)
    assert size == 12 * QWEN3_4B.parameters
    lora = args.changed(use_lora=True, lora_rank=16)
    assert checkpoint_bytes(lora, QWEN3_4B) < 0.02 * size
    free = [4 * size]
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free[0]))
    assert budget_of(args, memory(80)).warnings == ()
    free[0] -= 1
    (warning,) = budget_of(args, memory(80)).warnings
    assert f"the disk of {tmp_path}" in warning
    assert "lower --save-keep 3" in warning
    for number in (10, 20):
        (tmp_path / "save" / f"iter_{number:07d}").mkdir(parents=True)
    assert budget_of(args, memory(80)).warnings == ()
