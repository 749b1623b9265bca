"""Model shapes with random weights, and the most FLOP/s that a matrix product reaches."""

from __future__ import annotations

import time
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


def build(
    shape: Shape, folder: Path, *, dtype: str = "float32", device: str = "cpu", initializer_range: float = 0.02
) -> Path:
    """Write a checkpoint of ``shape`` with random weights and a small tokenizer, and return its folder.

    The weights are drawn on ``device``: for a process of its own on CUDA, because it starts CUDA.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from lab.testkit.tiny_random import build_tokenizer

    tokenizer = build_tokenizer()
    config = Qwen3Config(
        **asdict(shape),
        max_position_embeddings=65_536,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=initializer_range,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen3ForCausalLM(config).to(getattr(torch, dtype))
    model.to("cpu").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def matmul_peak(device_name: str, repeats: int = 5) -> float:
    """The most FLOP/s that ``repeats`` square matrix products reach, float32 on one thread of a CPU, bfloat16 on CUDA.

    For a process of its own: it starts CUDA, and one that has cannot fork.
    """
    import torch

    device, on_gpu = torch.device(device_name), device_name == "cuda"
    torch.set_num_threads(1)
    size, dtype, at_once = (8192, torch.bfloat16, 10) if on_gpu else (1536, torch.float32, 1)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best = 0.0
    for _ in range(repeats + 1):
        if on_gpu:
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        for _ in range(at_once):
            left @ right
        if on_gpu:
            torch.cuda.synchronize(device)
        best = max(best, 2.0 * at_once * size**3 / (time.perf_counter() - start))
    return best
