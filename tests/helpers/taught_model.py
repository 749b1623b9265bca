"""A tiny checkpoint that answers every question in the same words, for servers that need a judge's answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.testkit import tiny_random

STEPS = 300
GOOD_LOSS = 0.01


def teach(path: Path, answer: str, prompts: list[list[int]]) -> Path:
    """Write a checkpoint to ``path`` that continues ``prompts``, and others like them, with ``answer``; return ``path``."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tiny_random.build(path, seed=3, initializer_range=0.02)
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    words = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = float("inf")
    for step in range(STEPS):
        prompt = prompts[step % len(prompts)]
        labels = torch.tensor([[-100] * len(prompt) + words])
        found = model(input_ids=torch.tensor([prompt + words]), labels=labels).loss
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = found.item()
        if loss < GOOD_LOSS and step > len(prompts):
            break
    assert loss < 10 * GOOD_LOSS, f"the model did not learn its answer: loss {loss:.3f} after {STEPS} steps"
    model.save_pretrained(path)
    return path
