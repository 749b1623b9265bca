"""The trainer benchmark measures real steps, and the logprob pass it weighs never has its whole logits."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.trainer_parts import logprob_pass
from benchmarks.trainer_parts.our_step import arguments
from benchmarks.trainer_parts.samples import samples
from benchmarks.trainer_parts.shapes import SHAPES, build
from benchmarks.trainer_parts.sides import Plan, run_in_turn
from lab.testkit.fork_server import in_own_process


def test_sides_take_steps_in_turn(tmp_path: Path) -> None:
    model = build(SHAPES["tiny"], tmp_path / "model")
    batch = tmp_path / "batch.json"
    batch.write_text(json.dumps(samples([9, 5, 12], 500)))
    flags = {"hf_checkpoint": str(model), "device": "cpu", "train_dtype": "float32", "max_tokens_per_gpu": 16}
    flags |= {"use_dynamic_batch_size": True}
    plans = [
        Plan(name, ["mixed"], {"flags": flags | {"pack_sequences": packed}, "batches": {"mixed": str(batch)}})
        for name, packed in (("packed", True), ("padded", False))
    ]
    found = run_in_turn(plans, tmp_path, rounds=2)
    assert set(found) == {"packed", "padded"}
    for figures in found.values():
        assert len(figures["mixed"]["all_seconds"]) == 2
        assert figures["mixed"]["seconds"] > 0


def test_a_logprob_pass_never_has_its_whole_logits(tmp_path: Path) -> None:
    vocabulary, tokens, options = 16_384, 1024, {"device": "cpu", "chunk": 16, "folder": tmp_path}
    found = logprob_pass.measure(SHAPES["tiny"], [64, tokens], [1024, vocabulary], **options)
    (largest,) = [row for row in found["rows"] if (row["tokens"], row["vocabulary"]) == (tokens, vocabulary)]
    whole = 4 * vocabulary * (tokens - -(-tokens // 3))
    assert largest["chunked_peak_bytes"] < whole
    assert found["bytes_per_token_and_entry"] < 1.0  # 4 or more with whole logits


def test_one_process_makes_several_passes_as_on_cuda(tmp_path: Path) -> None:
    model = build(SHAPES["tiny"], tmp_path / "model")
    args = arguments({"hf_checkpoint": str(model), "device": "cpu", "train_dtype": "float32"})
    peaks = in_own_process(logprob_pass.pass_peaks, [(args, samples([64], 500)), (args, samples([256], 500))])
    assert len(peaks) == 2
