"""Tiny checkpoints of other kinds and shapes than the default random one, without a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

VOCABULARY = 640


def _save(model: Any, path: Path) -> Path:
    model.save_pretrained(path)
    return path


def _common(**changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "initializer_range": 0.08,
        "tie_word_embeddings": False,
    } | changes


def qwen2(path: Path) -> Path:
    """Write a random Qwen2.5 checkpoint, whose query, key and value have a bias that is not zero."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = Qwen2ForCausalLM(Qwen2Config(**_common())).float()
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.1)
    return _save(model, path)


def qwen3_moe(path: Path) -> Path:
    """Write a random Qwen3-MoE checkpoint of four experts, two of them active."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        **_common(head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48, norm_topk_prob=True)
    )
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = Qwen3MoeForCausalLM(config).float()
    return _save(model, path)


def without_last_row(source: Path, path: Path) -> Path:
    """Write a copy of a checkpoint whose vocabulary is one token smaller."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    model.resize_token_embeddings(model.config.vocab_size - 1)
    return _save(model, path)
