"""Builds a Qwen3.5 checkpoint with random weights: linear and full attention, and a vision tower around it."""

from __future__ import annotations

from pathlib import Path

VOCABULARY = 640


def build(path: Path, *, tie_word_embeddings: bool = True) -> Path:
    """Write the checkpoint of a whole model (names ``model.language_model.*`` and ``model.visual.*``) and return its folder."""
    import torch
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "initializer_range": 0.08,
        "tie_word_embeddings": tie_word_embeddings,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [1, 1, 0],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 16,
        "patch_size": 4,
    }
    config = Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=tie_word_embeddings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen3_5ForConditionalGeneration(config)
    model.save_pretrained(path)
    return path
