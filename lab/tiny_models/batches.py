"""Conversations as batches of ids and loss weights.

Guarantees: prompts are the chat template's, tokenised apart from the target exactly as at serving time; the same seed
gives the same batches. Weights: every token of the target counts; the result of a calculation and the first tokens of
a judge's answer, which carry its decision, count more. Earlier replies of a conversation are trained too, except their
first token, which the template's ``<think>`` prefix decides.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lab.tiny_models.episodes import Episode, echo_episode, judge_episode, policy_episode
from lab.tiny_models.tokenizer import completion_text, prompt_text

POLICY_SHARE, ECHO_SHARE = 0.6, 0.1
# The first pools are copying alone, about 80 steps each. Heads that copy form there after some 250 steps.
ECHO_POOLS = 4
DECISION_WEIGHT, DECISION_TOKENS = 4.0, 3
RESULT_WEIGHT, NUMBER_WEIGHT = 4.0, 2.0
MAX_TOKENS = 700
POOL = 2000

_HISTORY = re.compile(r"<\|im_start\|>assistant\n(.+?<\|im_end\|>)", re.DOTALL)
_RESULT = re.compile(r"(?:(?<== )|(?<=\d is ))\d+")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Encoded:
    """Ids of a conversation and the loss weight of each."""

    ids: list[int]
    weights: list[float]


def encode(tokenizer: Any, episode: Episode) -> Encoded:
    """Return the ids and weights of one conversation."""
    prompt, target = prompt_text(tokenizer, episode), completion_text(episode.messages[-1])
    head = tokenizer(prompt, return_offsets_mapping=True, add_special_tokens=False)
    weights = [0.0] * len(head["input_ids"])
    if episode.kind == "policy":
        for match in _HISTORY.finditer(prompt):
            _weigh_reply(weights, head["offset_mapping"], prompt, match.start(1), match.end(1))
    tail = tokenizer(target, return_offsets_mapping=True, add_special_tokens=False)
    target_weights = [1.0] * len(tail["input_ids"])
    if episode.kind == "judge":
        target_weights[:DECISION_TOKENS] = [DECISION_WEIGHT] * min(DECISION_TOKENS, len(target_weights))
    else:
        _weigh_numbers(target_weights, tail["offset_mapping"], target, 0)
    return Encoded(head["input_ids"] + tail["input_ids"], weights + target_weights)


def batches(tokenizer: Any, seed: int, tokens: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield padded ids and weights of at most ``tokens`` positions, of similar lengths, without end."""
    rng = random.Random(seed)
    for number in itertools.count():
        draw = echo_episode if number < ECHO_POOLS else _episode
        pool = [encode(tokenizer, draw(rng)) for _ in range(POOL)]
        yield from padded(pool, rng, tokens)


def padded(pool: Iterable[Encoded], rng: random.Random, tokens: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the conversations of a pool as batches of at most ``tokens`` positions, of similar lengths, in random order."""
    kept = [encoded for encoded in pool if len(encoded.ids) <= MAX_TOKENS]
    kept.sort(key=lambda encoded: len(encoded.ids) + rng.random() * 10)
    groups: list[list[Encoded]] = [[]]
    longest = 0
    for encoded in kept:
        longest = max(longest, len(encoded.ids))
        if groups[-1] and longest * (len(groups[-1]) + 1) > tokens:
            groups.append([])
            longest = len(encoded.ids)
        groups[-1].append(encoded)
    rng.shuffle(groups)
    for group in groups:
        yield _pad(group)


def _episode(rng: random.Random) -> Episode:
    kind = rng.random()
    if kind < POLICY_SHARE:
        return policy_episode(rng)
    return echo_episode(rng) if kind < POLICY_SHARE + ECHO_SHARE else judge_episode(rng)


def _pad(group: list[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    length = max(len(encoded.ids) for encoded in group)
    ids = torch.zeros(len(group), length, dtype=torch.long)
    weights = torch.zeros(len(group), length)
    for row, encoded in enumerate(group):
        ids[row, : len(encoded.ids)] = torch.tensor(encoded.ids)
        weights[row, : len(encoded.ids)] = torch.tensor(encoded.weights)
    return ids, weights


def _weigh_reply(weights: list[float], offsets: list[tuple[int, int]], text: str, start: int, end: int) -> None:
    """Give a reply inside the prompt its weights, its first token aside."""
    inside = [position for position, (left, _) in enumerate(offsets) if start <= left < end]
    for position in inside[1:]:
        weights[position] = 1.0
    _weigh_numbers(weights, offsets, text, start, end)


def _weigh_numbers(
    weights: list[float], offsets: list[tuple[int, int]], text: str, start: int, end: int | None = None
) -> None:
    for pattern, weight in ((_NUMBER, NUMBER_WEIGHT), (_RESULT, RESULT_WEIGHT)):
        for match in pattern.finditer(text, start, len(text) if end is None else end):
            for position, (left, _) in enumerate(offsets):
                if match.start() <= left < match.end():
                    weights[position] = weight
