"""A tiny checkpoint that answers each question with one of four boxed numbers, each as often: a start for learning by reward."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from lab.testkit import tiny_random

ANSWERS = ("1", "2", "3", "4")
STEPS, BATCH = 120, 8
GOOD_LOSS = 1.55
"""Of the whole answer; the choice alone costs ln 4 = 1.39."""


def asked(question: str) -> str:
    """Return the prompt that the cookbook writes for a question, with its example before."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def build(path: Path, questions: list[str]) -> Path:
    """Write the checkpoint to ``path`` and return it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tiny_random.build(path, seed=5)
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    random_numbers, losses = random.Random(0), []
    for _ in range(STEPS):
        total = torch.zeros(())
        for _ in range(BATCH):
            question, answer = random_numbers.choice(questions), random_numbers.choice(ANSWERS)
            prompt = tokenizer.encode(asked(question), add_special_tokens=False)
            words = tokenizer.encode(f"\\boxed{{{answer}}}<|im_end|>", add_special_tokens=False)
            labels = torch.tensor([[-100] * len(prompt) + words])
            loss = model(input_ids=torch.tensor([prompt + words]), labels=labels).loss * len(words)
            total = total + loss / BATCH
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total.item())
    last = sum(losses[-10:]) / 10
    assert last < GOOD_LOSS + 0.4, f"the model did not learn to answer: loss {last:.2f}"
    model.save_pretrained(path)
    return path
