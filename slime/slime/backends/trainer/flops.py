"""Arithmetic of a forward pass, for the ``*_tflops`` metrics: what the model's matrices and causal attention need.

A token through a matrix of n weights takes 2n; causal attention of a sample of n tokens ``2 n^2`` times query heads times head
size per layer, the masked half not counted; the LM head counts for response tokens only (Chowdhery et al., "PaLM", 2022,
appendix B). Of experts those count that a token is sent to. Linear attention counts as full attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def forward_flops(config: Mapping[str, Any], lengths: Sequence[int], responses: Sequence[int]) -> float:
    """FLOPs of a forward pass over samples of ``lengths`` tokens, ``responses`` of them scored.

    ``config`` is a Hugging Face ``config.json``; of a vision model its ``text_config`` counts.
    """
    config = config.get("text_config") or config
    hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    head_size = config.get("head_dim") or hidden // heads
    queries, keys = heads * head_size, (config.get("num_key_value_heads") or heads) * head_size
    experts = config.get("num_experts_per_tok")
    inner = experts * config["moe_intermediate_size"] if experts else config["intermediate_size"]
    weights = layers * hidden * (2 * queries + 2 * keys + 3 * inner)
    attention = 2.0 * queries * layers * sum(length**2 for length in lengths)
    return 2.0 * weights * sum(lengths) + attention + 2.0 * hidden * config["vocab_size"] * sum(responses)


def speeds(seconds: Mapping[str, float], flops: float, tokens: int) -> dict[str, float]:
    """Return TFLOP/s of the phases that took ``seconds``, from the ``flops`` of one forward pass, and tokens trained per second.

    A backward pass counts as two forward ones; what is computed again for it does not count.
    """
    passes = {"log_probs": 1, "ref_log_probs": 1, "actor_train": 3}
    found = {
        f"perf/{phase}_tflops": count * flops / seconds[phase] / 1e12
        for phase, count in passes.items()
        if seconds.get(phase)
    }
    if seconds.get("actor_train"):
        found["perf/actor_train_tok_per_s"] = tokens / seconds["actor_train"]
    return found
