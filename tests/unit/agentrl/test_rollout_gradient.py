"""An episode as one sample trains the same tokens with the same gradient as a sample per turn, and reads fewer tokens."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.rollout.token_policy import ChatCodec, Conversation
from slime.rollout.rewards import mask_sums, rollout_ids
from slime.rollout.segments import SampledTurn, Segment, alone, merge
from slime.utils.types import Sample

TURNS = 10


@pytest.fixture(scope="module")
def model(tiny_random_model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_random_model, dtype=torch.float64)


def played(path: Path) -> list[SampledTurn]:
    """Ten turns of random ids, as a policy without a clue samples them."""
    codec, chance = ChatCodec(AutoTokenizer.from_pretrained(path)), random.Random(5)
    talk = Conversation(codec, [{"role": "user", "content": "Guess."}], keywords={"enable_thinking": True})
    turns = []
    for number in range(TURNS):
        prompt, ids = talk.prompt(), [chance.randrange(640) for _ in range(12)]
        turns.append(SampledTurn(prompt, ids, [-0.5] * len(ids)))
        talk.said(prompt, ids, codec.read(prompt, ids, (), number))
        talk.heard([{"role": "user", "content": f"{number}: wrong"}])
    return turns


def gradients(model: Any, segments: list[Segment]) -> dict[str, torch.Tensor]:
    """The gradient of the mean log probability of a trajectory's trained tokens, with slime's denominator."""
    samples: list[Sample] = [segment.sample(group_index=0, index=0, reward=1.0) for segment in segments]
    masks = [sample.loss_mask or [] for sample in samples]
    sums = mask_sums(rollout_ids(samples), masks)
    model.zero_grad()
    for sample, mask, total in zip(samples, masks, sums, strict=True):
        tokens = torch.tensor([sample.tokens])
        scores = model(tokens).logits[0, -len(mask) - 1 : -1].log_softmax(-1)
        chosen = scores.gather(-1, tokens[0, -len(mask) :, None])[:, 0]
        ((chosen * torch.tensor(mask)).sum() / total).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def trained(segments: list[Segment]) -> list[int]:
    return [
        token
        for segment in segments
        for token, mask in zip(segment.tokens[segment.prompt_length :], segment.loss_mask, strict=True)
        if mask
    ]


def test_merged_turns_have_the_gradient_of_a_sample_per_turn(tiny_random_model: Path, model: Any) -> None:
    turns = played(tiny_random_model)
    merged, apart = merge(turns), alone(turns)
    assert (len(merged), len(apart)) == (1, TURNS)
    assert trained(merged) == trained(apart)
    few, many = (sum(len(segment.tokens) for segment in segments) for segments in (merged, apart))
    print(f"{few} tokens in one sample, {many} in a sample per turn: {few / many:.3f}")
    assert few <= many / 3
    one, other = gradients(model, merged), gradients(model, apart)
    largest = max(float(gradient.abs().max()) for gradient in one.values())
    worst = max(float((one[name] - other[name]).abs().max()) for name in one)
    print(f"gradients up to {largest:.3g} differ by {worst:.3g}")
    assert largest > 1e-3
    assert worst < 1e-5 * largest
