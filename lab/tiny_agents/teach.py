"""Teaches a tiny random model the lessons of an agent program, until it gives each answer as often as it should.

Guarantees: a folder under its final name is complete, and its model was measured: it gives both first answers, neither of them
too seldom, and hardly anything else. The same lessons, recorded in whatever run, give the same folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from lab.tiny_agents.lessons import Lesson, LessonError, variants
from lab.tiny_models.tokenizer import END, train_bpe

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "tiny_agents"
TEMPLATE = Path(__file__).with_name("chat_template.jinja")
VOCABULARY = 1536
CONTROL_TOKENS = ["<tool_call>", "</tool_call>"]
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTEXT = 8192
RATE = 2e-3
MAX_STEPS = 1200
EVERY = 20
"""Steps between two looks at the answers."""
GOOD = 0.97
"""Probability of all the answers of a prompt together."""
SELDOM = 0.3
"""Least probability of either first answer."""


def taught(lessons: Sequence[Lesson], say: Callable[[str], None]) -> Path:
    """Return the folder of the model that has learned ``lessons``, from the cache or taught now.

    Raises:
        LessonError: it did not learn them.
    """
    told = json.dumps([asdict(variants(lesson)[0]) for lesson in lessons], sort_keys=True)
    source = Path(__file__).read_bytes() + TEMPLATE.read_bytes()
    folder = CACHE / hashlib.sha256(source + told.encode()).hexdigest()[:16]
    if folder.exists():
        return folder
    tokenizer = build_tokenizer([told, *(answer for lesson in lessons for answer in lesson.answers)])
    model = teach(tokenizer, lessons, say)
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    try:
        tokenizer.save_pretrained(partial)
        model.save_pretrained(partial)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def build_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE of the lessons' own words, so that long prompts are few tokens."""
    # Prompts are JSON here: their line breaks and quotes are escaped, and become what the model reads.
    plain = [text.replace("\\n", "\n").replace('\\"', '"') for text in texts]
    return train_bpe(plain, VOCABULARY, SPLIT, CONTROL_TOKENS, TEMPLATE.read_text(), context=CONTEXT)


def teach(tokenizer: Any, lessons: Sequence[Lesson], say: Callable[[str], None]) -> Qwen3ForCausalLM:
    """Return a model that gives the answers of the lessons; see `LessonError`."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=-(-len(tokenizer) // 16) * 16,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
            pad_token_id=tokenizer.pad_token_id,
            initializer_range=0.02,
        )
    )
    others = [variants(lesson) for lesson in lessons]
    told = [_ids(tokenizer, other) for each in others for other in each[: max(len(each) - 1, 1)]]
    asked = [_ids(tokenizer, each[-1]) for each in others]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    order = _order(len(told))
    chances: list[list[float]] = []
    for step in range(1, MAX_STEPS + 1):
        prompt, answers = told[next(order)]
        loss = -_scores(model, prompt, answers).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % EVERY == 0:
            with torch.no_grad():
                chances = [_scores(model, prompt, answers).exp().tolist() for prompt, answers in asked]
            say(f"step {step}: at worst {min(map(sum, chances)):.3f} of the replies are known ones")
            if all(sum(each) >= GOOD and (len(each) == 1 or min(each) >= SELDOM) for each in chances):
                return model
    raise LessonError(
        f"after {MAX_STEPS} steps the answers have the probabilities {chances}; at least {GOOD} is needed"
    )


def _order(count: int) -> Iterator[int]:
    """Yield every lesson once in each round, in another order: what is told in blocks is forgotten in blocks."""
    draw = random.Random(0)
    while True:
        yield from draw.sample(range(count), count)


def _ids(tokenizer: Any, lesson: Lesson) -> tuple[list[int], list[list[int]]]:
    """Return the ids of the prompt, and of each answer with its end."""
    prompt = tokenizer.apply_chat_template(
        list(lesson.messages), tools=list(lesson.tools), tokenize=False, add_generation_prompt=True
    )
    encoded = [tokenizer.encode(answer + END, add_special_tokens=False) for answer in lesson.answers]
    return tokenizer.encode(prompt, add_special_tokens=False), encoded


def _scores(model: Any, prompt: list[int], answers: list[list[int]]) -> torch.Tensor:
    """Return the log-probability of each whole answer after a prompt."""
    longest = max(map(len, answers))
    rows = [prompt + answer + [0] * (longest - len(answer)) for answer in answers]
    hidden = model.model(input_ids=torch.tensor(rows)).last_hidden_state[:, len(prompt) - 1 : -1]
    logits = model.lm_head(hidden)
    scores = []
    for row, answer in zip(logits, answers, strict=True):
        scores.append(-cross_entropy(row[: len(answer)], torch.tensor(answer), reduction="sum"))
    return torch.stack(scores)
