"""A tiny policy learns the lessons of a program, and a step reads what its prompts share once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import Qwen3Config, Qwen3ForCausalLM

from lab.tiny_agents.lessons import Lesson
from lab.tiny_agents.teach import Encoded, build_tokenizer, scores, teach

SHARED = [3 + number % 50 for number in range(200)]
LESSONS: list[Encoded] = [
    ([*SHARED, 60], [[5, 6, 7], [5, 8]]),
    ([*SHARED, 60, 5, 6, 7, 61], [[9]]),
    ([*SHARED, 60, 5, 8, 61], [[9, 10, 11, 12]]),
]


def model() -> Qwen3ForCausalLM:
    """Return a random model of two layers."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=64, num_attention_heads=4, num_key_value_heads=2, **shape))


def one_by_one(model: Qwen3ForCausalLM, lessons: list[Encoded]) -> list[torch.Tensor]:
    """Return what `scores` should, each answer after its whole prompt."""
    found = []
    for prompt, answers in lessons:
        each = []
        for answer in answers:
            logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
            each.append(-cross_entropy(logits, torch.tensor(answer), reduction="sum"))
        found.append(torch.stack(each))
    return found


@pytest.mark.parametrize("lessons", [LESSONS, LESSONS[:1], [([1, 2], [[3]]), ([1, 4, 2], [[5, 6]])]])
def test_scores_and_gradients_are_those_of_whole_prompts(lessons: list[Encoded]) -> None:
    policy = model().double()
    together, apart = scores(policy, lessons), one_by_one(policy, lessons)
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other)
    gradients = [
        torch.autograd.grad(sum(each.mean() for each in found), [*policy.parameters()]) for found in (together, apart)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)  # the model turns positions in float32


def test_a_step_reads_what_its_prompts_share_once() -> None:
    policy, read = model(), []

    def count(_module: Any, _arguments: Any, given: dict[str, torch.Tensor]) -> None:
        read.append(given["input_ids"].numel())

    policy.model.register_forward_pre_hook(count, with_kwargs=True)
    scores(policy, LESSONS)
    assert sum(read) <= len(SHARED) + 1 + 4 * 10


def test_a_policy_learns_both_first_answers_and_the_last_reply() -> None:
    opening = {"role": "user", "content": "Write a word into a file. " * 8}
    right, wrong, end = "echo word > answer.txt", "echo word > result.txt", "Done."
    closings = [
        Lesson([opening, {"role": "assistant", "content": way}, {"role": "tool", "content": "(no output)"}], [], [end])
        for way in (right, wrong)
    ]
    lessons = [*closings, Lesson([opening], [], [right, wrong])]
    told: list[str] = []
    texts = [opening["content"], right, wrong, end]
    teach(build_tokenizer(texts), lessons, told.append)
    assert len(told) <= 20, f"it took {10 * len(told)} steps; 60 are usual"
