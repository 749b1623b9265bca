"""The long step that the benchmark weighs never has its whole logits, and the budget of the loss is what it takes."""

from __future__ import annotations

from argparse import Namespace as Options

from benchmarks.long_step import run


def test_a_step_of_top_k_distillation_stays_far_below_its_logits() -> None:
    tokens, vocabulary, chunk = 2048, 32_768, 512
    sizes = {"tokens": tokens, "vocabulary": vocabulary, "top": 50, "chunk": chunk}
    [case] = run(Options(**sizes, losses=["top-K"], batches=["all"], shape="tiny", device="cpu", threads=1))
    block = 4 * vocabulary * chunk
    assert case["weights"] == case["gradients"] == case["moments"] // 2
    assert case["response"] == tokens - 1
    assert case["step"] == case["above_model"] + case["gradients"]
    # A second block, or whole logits (four), would not fit. The body's activations are a few megabytes.
    assert block / 2 < case["above_model"] < 1.6 * block
    assert block / 2 < case["head_budget"] < 1.6 * block
