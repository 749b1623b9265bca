"""The trainer benchmark counts what it says: FLOPs, lengths, the growth of memory; and a verdict can fail."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict, replace
from typing import Any

import pytest

from benchmarks import trainer
from benchmarks.trainer_parts.logprob_pass import growth
from benchmarks.trainer_parts.samples import mixed_lengths, samples
from benchmarks.trainer_parts.shapes import SHAPES
from slime.backends.trainer.flops import step_flops


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
    def row(side: str, speed: float) -> dict[str, Any]:
        return {"side": side, "batch": "mixed", "tokens_per_second": speed, "peak_bytes": 1}

    rows = [
        row("packed", 100.0),
        row("padded", 80.0),
        row("padded, by length", 90.0),
        row("LoRA, packed", 120.0),
        row("whole logits", 90.0),
    ]
    memory = {"bytes_per_token_and_entry": 0.01, "no_growth": True}
    found = trainer.verdicts([*rows, row("TRL, 1 at a time", 50.0), row("TRL, 8 at a time", 110.0)], memory)
    assert not found["packed_over_padded"]["met"]
    assert found["logprob_pass_memory"]["met"]
    assert found["ours_over_trl"] == {"against": "TRL, 8 at a time", "ratio": 0.91, "goal": 1.0, "met": False}
    assert "ours_over_trl" not in trainer.verdicts(rows, memory)


def test_batches_of_equal_samples_have_the_tokens_of_four_of_the_longest() -> None:
    options = Namespace(samples=4, longest=1024)
    assert sum(trainer.lengths_of("128", options)) == sum(trainer.lengths_of("512", options)) == 4 * 1024
