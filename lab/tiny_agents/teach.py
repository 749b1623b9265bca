"""Teaches a tiny random model the lessons of an agent program, until it gives each answer as often as it should.

Guarantees: a folder under its final name is complete, and its model was measured: it gives both first answers, neither of them
too seldom, and hardly anything else. The same lessons, recorded in whatever run, give the same folder. A step has all lessons
of a run and reads the tokens with which they begin once.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from lab.tiny_agents.lessons import Lesson, LessonError, as_runs, variants
from lab.tiny_models.tokenizer import END, train_bpe

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "tiny_agents"
TEMPLATE = Path(__file__).with_name("chat_template.jinja")
VOCABULARY = 1536
CONTROL_TOKENS = ["<tool_call>", "</tool_call>"]
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTEXT = 8192
RATE = 2e-3
MAX_STEPS = 600
EVERY = 10
"""Steps between two looks at the answers."""
GOOD = 0.97
"""Probability of all the answers of a prompt together."""
SELDOM = 0.3
"""Least probability of either first answer."""

Encoded = tuple[list[int], list[list[int]]]
"""The ids of a prompt, and of each of its answers."""


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
    runs = [[_ids(tokenizer, lesson) for lesson in run] for run in as_runs(lessons)]
    told, asked = runs[:-1] or runs, runs[-1]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    order = _order(len(told))
    chances: list[list[float]] = []
    for step in range(1, MAX_STEPS + 1):
        loss = -torch.stack([each.mean() for each in scores(model, told[next(order)])]).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % EVERY == 0:
            with torch.no_grad():
                chances = [each.exp().tolist() for each in scores(model, asked)]
            say(f"step {step}: at worst {min(map(sum, chances)):.3f} of the replies are known ones")
            if all(sum(each) >= GOOD and (len(each) == 1 or min(each) >= SELDOM) for each in chances):
                return model
    raise LessonError(
        f"after {MAX_STEPS} steps the answers have the probabilities {chances}; at least {GOOD} is needed"
    )


def _order(count: int) -> Iterator[int]:
    """Yield every run once in each round, in another order: what is told in blocks is forgotten in blocks."""
    draw = random.Random(0)
    while True:
        yield from draw.sample(range(count), count)


def _ids(tokenizer: Any, lesson: Lesson) -> Encoded:
    """Return the ids of the prompt, and of each answer with its end."""
    prompt = tokenizer.apply_chat_template(
        list(lesson.messages), tools=list(lesson.tools), tokenize=False, add_generation_prompt=True
    )
    encoded = [tokenizer.encode(answer + END, add_special_tokens=False) for answer in lesson.answers]
    return tokenizer.encode(prompt, add_special_tokens=False), encoded


def scores(model: Qwen3ForCausalLM, lessons: Sequence[Encoded]) -> list[torch.Tensor]:
    """Return the log-probability of each whole answer after its prompt, a tensor per lesson.

    The prompts' common beginning, at least the template's first token, is read once. Its keys and values serve every rest and answer
    behind it, and the gradient flows back through them.
    """
    prompts = [prompt for prompt, _ in lessons]
    alike = takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False))
    begin = min(len(list(alike)), min(map(len, prompts)) - 1)
    rows = [(prompt[begin:], answer) for prompt, answers in lessons for answer in answers]
    longest = max(len(rest) + len(answer) for rest, answer in rows)
    padded = [[*rest, *answer, *[0] * (longest - len(rest) - len(answer))] for rest, answer in rows]
    cache = model.model(input_ids=torch.tensor([prompts[0][:begin]]), use_cache=True).past_key_values
    cache.batch_repeat_interleave(len(rows))
    hidden = model.model(input_ids=torch.tensor(padded), past_key_values=cache).last_hidden_state
    found = []
    for row, (rest, answer) in zip(hidden, rows, strict=True):
        logits = model.lm_head(row[len(rest) - 1 : len(rest) - 1 + len(answer)])
        found.append(-cross_entropy(logits, torch.tensor(answer), reduction="sum"))
    return list(torch.stack(found).split([len(answers) for _, answers in lessons]))
