"""The trainer benchmark counts what it says: FLOPs, lengths, the growth of memory; and a verdict can fail."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import trainer
from benchmarks.trainer_parts import sides
from benchmarks.trainer_parts.logprob_pass import growth
from benchmarks.trainer_parts.our_step import arguments, estimated_bytes, with_planned_layers
from benchmarks.trainer_parts.ratio import against_goal, how_many_times_faster
from benchmarks.trainer_parts.samples import mixed_lengths, samples
from benchmarks.trainer_parts.shapes import SHAPES
from lab.testkit.trainer import trainer_args
from slime.arguments.memory_budget.shape import shape_of_folder
from slime.arguments.memory_budget.trainer import trainer_need
from slime.arguments.process_environment import ALLOCATOR, rank_settings
from slime.backends.trainer.metrics import step_flops
from tests.helpers.checkpoints import config_only


@pytest.mark.parametrize("name", ["tiny", "small"])
def test_flops_are_six_per_weight_and_token_and_attention(name: str) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = replace(SHAPES[name], vocab_size=64)
    config = asdict(shape)
    with torch.device("meta"):
        model = Qwen3ForCausalLM(Qwen3Config(**vars(shape)))
    matrices = sum(p.numel() for key, p in model.named_parameters() if p.dim() == 2 and "embed" not in key)
    heads = shape.num_hidden_layers * shape.num_attention_heads * shape.head_dim
    assert step_flops(config, [10], [10]) == 6.0 * matrices * 10 + 6.0 * heads * 100
    assert step_flops(config, [10, 10], [10, 10]) == 2 * step_flops(config, [10], [10])
    base = matrices - shape.vocab_size * shape.hidden_size
    assert step_flops(config, [10], [10]) - step_flops(config, [10], [0]) == 6.0 * (matrices - base) * 10
    assert step_flops(config, [10], [10], lora_rank=1) < step_flops(config, [10], [10])


def test_the_large_shapes_have_the_sizes_of_their_names() -> None:
    def billions(name: str) -> float:
        return step_flops(asdict(SHAPES[name]), [1], [1]) / 6e9

    assert billions("qwen3-0.6b") == pytest.approx(0.596, abs=0.01)
    assert billions("qwen3-4b") == pytest.approx(4.02, abs=0.05)


def test_the_planned_side_has_the_layers_that_a_start_plans(tmp_path: Path) -> None:
    model = config_only(tmp_path / "Qwen3-4B", max_position_embeddings=40960)
    flags = {
        **{"hf_checkpoint": str(model), "device": "cuda", "train_dtype": "bfloat16", "use_dynamic_batch_size": True},
        **{"max_tokens_per_gpu": 8192, "gradient_checkpointing": True},
    }
    found = [with_planned_layers(arguments({**flags, "gpu_memory_gb": gib})) for gib in (80, 200)]
    assert 0 < (found[0].unchecked_layers or 0) < 36 == found[1].unchecked_layers
    assert (found[0].rollout_max_context_len, found[0].num_nodes) == (None, arguments(flags).num_nodes)
    with pytest.raises(RuntimeError, match="a GPU whose memory the driver tells"):
        with_planned_layers(arguments(flags))


def test_a_gpu_has_a_side_with_planned_layers(tmp_path: Path) -> None:
    options: Any = SimpleNamespace(
        device="cuda", cap=64, long=128, padded=8, sides=trainer.SIDES, trl_python=None, trl_micro_batches=[], lengths=[]
    )  # fmt: skip
    files = {"mixed": "m.json", trainer.LONG: "l.json"}
    planned = {plan.name: plan.settings["planned"] for plan in trainer.plans(options, tmp_path, files, tmp_path)}
    assert [name for name, value in planned.items() if value] == [name for name in trainer.SIDES if "planned" in name]


def test_a_cpu_has_no_side_of_a_gpu_and_no_side_lacks_its_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options: Any = SimpleNamespace(device="cpu", lengths=[], long=128, batches=None, sides=None, quick=False)
    trainer.settle(ArgumentParser(), options)
    assert options.sides == [name for name in trainer.SIDES if name not in trainer.ON_CUDA]
    monkeypatch.setattr(trainer.importlib.util, "find_spec", lambda name: None)
    options.device, options.sides = "cuda", None
    trainer.settle(ArgumentParser(), options)
    assert set(trainer.SIDES) - set(options.sides) == {
        name for name in trainer.SIDES if "LoRA" in name or "liger" in name
    }
    assert (
        "peft is not installed, so these are left out: LoRA, packed; LoRA, packed, compiled" in capsys.readouterr().out
    )


def test_the_estimate_is_the_memory_plans_for_the_largest_micro_batch(tmp_path: Path) -> None:
    model = config_only(tmp_path / "Qwen3-4B", max_position_embeddings=40960)
    flags = {
        **{"hf_checkpoint": str(model), "device": "cuda", "train_dtype": "bfloat16", "use_dynamic_batch_size": True},
        **{"max_tokens_per_gpu": 8192, "gradient_checkpointing": True},
    }
    shard = {"tokens": [[1] * 3000, [1] * 4000, [1] * 500], "micro_batch_indices": [[[0, 2], [1]]]}
    args = arguments(flags)
    found = estimated_bytes(args, shard)
    shape = shape_of_folder(str(model))
    assert shape is not None
    need = trainer_need(
        args.changed(max_tokens_per_gpu=4000, rollout_max_context_len=4000, train_backend="fsdp"), shape, 1
    )
    assert found == need.total - sum(part.size for part in need.parts if part.name in ("runtime", "push buffers"))
    assert estimated_bytes(args.changed(pack_sequences=False), shard) is None


@pytest.mark.parametrize(("estimated", "met"), [(109, True), (111, False), (89, False), (None, None)])
def test_an_estimate_of_memory_that_is_off_by_more_than_a_tenth_fails(estimated: int | None, met: bool | None) -> None:
    row = {"side": "packed", "batch": "2048", "allocated_bytes": 100} | (
        {"estimated_bytes": estimated} if estimated else {}
    )
    found = trainer.verdicts([row], None)
    assert found.get("memory_estimate", {}).get("met") == met


def test_mixed_samples_have_a_long_one_and_many_short_ones() -> None:
    lengths = mixed_lengths(64, 1024)
    assert (len(lengths), max(lengths), lengths) == (64, 1024, mixed_lengths(64, 1024))
    assert min(lengths) >= 1024 // 32
    assert sum(lengths) / len(lengths) < 512
    data = samples(lengths, 100)
    assert all(len(ids) == n for ids, n in zip(data["tokens"], lengths, strict=True))
    assert all(0 < r < n for r, n in zip(data["response_lengths"], lengths, strict=True))


def test_whole_logits_grow_and_chunks_do_not() -> None:
    def corners(of: Any) -> list[dict[str, int]]:
        return [{"tokens": t, "vocabulary": v, "p": of(t, v)} for t in (10, 20, 40) for v in (100, 300, 900)]

    assert growth(corners(lambda t, v: 7 * t + 64 * v + 5), "p") == 0.0
    assert growth(corners(lambda t, v: 4 * t * v + 64 * v + 5), "p") == 4.0


def test_the_verdicts_say_what_was_missed() -> None:
    def row(side: str, speed: float, batch: str = "mixed") -> dict[str, Any]:
        times = {"all_seconds": [1 / speed, 2 / speed, 3 / speed], "all_cpu_seconds": [0.5 / speed] * 3}
        return {"side": side, "batch": batch, "tokens_per_second": speed, "peak_bytes": 1, **times}

    rows = [
        row("packed", 100.0),
        row("padded", 80.0),
        row("padded, by length", 90.0),
        row("LoRA, packed", 120.0),
        row("whole logits", 90.0),
    ]
    memory = {"bytes_per_token_and_entry": 0.01, "no_growth": True}
    theirs = [row("TRL, 1 at a time", 50.0), row("TRL, 8 at a time", 110.0)]
    equal = [
        row("packed", 30.0, "512"),
        row("TRL, 2 at a time, 512", 10.0, "512"),
        row("TRL, 4 at a time, 512", 5.0, "512"),
    ]
    found = trainer.verdicts([*rows, *theirs, *equal], memory)
    assert not found["packed_over_padded"]["met"]
    assert found["logprob_pass_memory"]["met"]
    missed = found["ours_over_trl_mixed"]
    assert (missed["against"], missed["ratio"], missed["met"]) == ("TRL, 8 at a time", 0.91, False)
    assert missed["by_cpu_time"] == 0.91
    reached = found["ours_over_trl_512"]
    assert (reached["against"], reached["ratio"], reached["met"]) == ("TRL, 2 at a time, 512", 3.0, True)
    assert "ours_over_trl_mixed" not in trainer.verdicts(rows, memory)


def test_a_ratio_is_that_of_neighbouring_steps_and_says_when_it_is_noise() -> None:
    ours, theirs = [1.0, 5.0, 1.0, 1.0, 1.0], [2.0, 10.0, 2.0, 4.0, 1.0]
    assert how_many_times_faster(ours, theirs) == {"ratio": 2.0, "middle_half": [2.0, 2.0], "rounds": 5}
    assert how_many_times_faster([2.0], [3.0]) == {"ratio": 1.5, "middle_half": [1.5, 1.5], "rounds": 1}

    def of(side: str, seconds: list[float]) -> dict[str, Any]:
        return {"side": side, "all_seconds": seconds, "all_cpu_seconds": [1.0] * len(seconds)}

    clear = against_goal(of("ours", ours), of("theirs", theirs), 1.5)
    assert (clear["met"], clear["beyond_noise"], clear["by_cpu_time"]) == (True, True, 1.0)
    scattered = against_goal(of("ours", [1.0] * 4), of("theirs", [0.5, 0.9, 1.2, 2.0]), 1.0)
    assert (scattered["met"], scattered["beyond_noise"]) == (True, False)


@pytest.mark.parametrize(("length", "cap", "expected"), [(256, 512, 2), (1024, 512, 1), (128, 1024, 8), (512, 1536, 2)])
def test_trl_gets_the_micro_batches_that_ours_are(length: int, cap: int, expected: int) -> None:
    options = SimpleNamespace(samples=4, longest=512, cap=cap, trl_micro_batches=[1, 3])
    assert trainer.equal_at_a_time(length, options) == expected
    assert trainer.trl_sizes(length, options) == sorted({1, expected})


def test_batches_of_equal_samples_have_the_tokens_of_four_of_the_longest() -> None:
    options = SimpleNamespace(samples=4, longest=1024)
    assert sum(trainer.lengths_of("128", options)) == sum(trainer.lengths_of("512", options)) == 4 * 1024


def test_a_side_has_a_ranks_allocator_unless_one_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    of_rank = {setting.name: setting.value for setting in rank_settings(trainer_args("", device="cuda"), {})}
    assert sides._environment()[ALLOCATOR[0]] == of_rank[ALLOCATOR[0]] == "expandable_segments:True"
    monkeypatch.setenv(ALLOCATOR[1], "max_split_size_mb:64")
    assert ALLOCATOR[0] not in sides._environment()
