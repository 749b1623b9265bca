"""The words of a tiny agent: a byte-level BPE of traces.

A name and a number of two digits are one token each, the same in a task, in a call and in an answer: a small model copies a
token long before it copies three digits, or learns which tokens spell the same word.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from agentrl.rollout.step_judge import SYSTEM
from lab.tiny_learning.traces import TaskSet
from lab.tiny_models.tokenizer import SPLIT, train_bpe

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
CONTROL_TOKENS = ["<tool_call>", "</tool_call>"]
VOCABULARY = 1280
PAIRS = SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,2}|")
"""Splits as `SPLIT`, but leaves two digits together."""
HEADINGS = "## Goal\n<<<\n\n## Before [system]\n<<<\n## Before [assistant]\n\n## Step\n\n## Next state\n>>>\n\ntool call bash({"
"""Of the judge's question."""
HEADED = 10
"""One trace of so many gives all its messages, the others only what differs."""


def build_tokenizer(sets: Sequence[TaskSet], traces: int = 3000) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE of the words of so many traces."""
    rng, texts = random.Random(0), list[str]()
    for number in range(traces):
        _, trace = sets[number % len(sets)].drawn(rng)
        heads = [*(f"{message['role']}\n{message['content']}" for message in trace.messages), SYSTEM, HEADINGS]
        tools = [
            f"\n{t['function']['name']}({', '.join(t['function']['parameters']['properties'])})" for t in trace.tools
        ]
        texts += ["assistant", "tools", "tool"] * (number % HEADED < len(sets))
        texts += [
            *(heads if number % HEADED < len(sets) else heads[1:2]),
            *(tools if number % HEADED < len(sets) else []),
        ]
        texts += [text for step in trace.steps for text in (step.text, step.heard, step.reason)]
    return train_bpe(texts, VOCABULARY, PAIRS, CONTROL_TOKENS, TEMPLATE.read_text())
