"""Model shapes with random weights, and the arithmetic of a training step on them.

FLOPs of a token through a matrix of n weights: 2n forward, 2n for the gradient of its input and 2n for its own. Causal
attention of a sample of n tokens: ``2 n^2`` times query heads times head size per layer and pass, half of it masked away
and not counted. The LM head counts for response tokens only. Recomputation is not counted (Chowdhery et al., "PaLM", 2022,
appendix B), nor are norms, rotary embeddings and the embedding.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Shape:
    """A Qwen3 model, by the names of its configuration."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    tie_word_embeddings: bool


SHAPES = {
    "tiny": Shape(1024, 64, 128, 2, 4, 2, 16, False),
    "small": Shape(8192, 256, 768, 4, 4, 2, 64, False),
    "qwen3-0.6b": Shape(151_936, 1024, 3072, 28, 16, 8, 128, True),
    "qwen3-4b": Shape(151_936, 2560, 9728, 36, 32, 8, 128, True),
}


def build(shape: Shape, folder: Path, *, dtype: str = "float32") -> Path:
    """Write a checkpoint of ``shape`` with random weights and a small tokenizer, and return its folder."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from tests.helpers.tiny_random import build_tokenizer

    tokenizer = build_tokenizer()
    config = Qwen3Config(
        **asdict(shape),
        max_position_embeddings=65_536,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def step_flops(shape: Shape, lengths: Sequence[int], responses: Sequence[int], *, lora_rank: int = 0) -> float:
    """FLOPs of forward and backward over samples of ``lengths`` tokens; with ``lora_rank`` the base weights are frozen."""
    queries = shape.num_attention_heads * shape.head_dim
    keys = shape.num_key_value_heads * shape.head_dim
    matrices = [
        *((shape.hidden_size, size) for size in (queries, keys, keys)),
        (queries, shape.hidden_size),
        *((shape.hidden_size, shape.intermediate_size) for _ in range(2)),
        (shape.intermediate_size, shape.hidden_size),
    ]
    base = shape.num_hidden_layers * sum(rows * columns for rows, columns in matrices)
    adapters = shape.num_hidden_layers * lora_rank * sum(rows + columns for rows, columns in matrices)
    passes = 2 if lora_rank else 3
    attention = sum(2.0 * length**2 * queries * shape.num_hidden_layers for length in lengths)
    head = shape.hidden_size * shape.vocab_size * sum(responses)
    return 2.0 * passes * (base * sum(lengths) + head) + 6.0 * adapters * sum(lengths) + 3.0 * attention


def matmul_peak(device_name: str, repeats: int = 5) -> float:
    """The most FLOP/s that ``repeats`` square matrix products reach, float32 on one thread of a CPU, bfloat16 on CUDA.

    For a process of its own: it starts CUDA, and one that has cannot fork.
    """
    import torch

    device, on_gpu = torch.device(device_name), device_name == "cuda"
    torch.set_num_threads(1)
    size, dtype = (8192, torch.bfloat16) if on_gpu else (1536, torch.float32)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best = 0.0
    for _ in range(repeats + 1):
        if on_gpu:
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        left @ right
        if on_gpu:
            torch.cuda.synchronize(device)
        best = max(best, 2.0 * size**3 / (time.perf_counter() - start))
    return best
