"""A softmax over a few replies, trained by AdamW on batches of rewards: what a reward rule does to a policy, in plain Python."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from openclaw.credit.baseline import WINDOW, mean_of

BATCH = 16
RATE, FIRST, SECOND = 0.1, 0.9, 0.98

Reward = Callable[[int, random.Random], float]
"""Reward of a reply by its number; 0 gives no sample."""


def train(start: Sequence[float], reward: Reward, *, updates: int, compares: bool, seed: int) -> list[float]:
    """Return the replies' shares after ``updates``, from the shares ``start``; ``compares``: subtract the baseline."""
    chance, rewards = random.Random(seed), list[float]()
    logits, first, second = [math.log(share) for share in start], [0.0] * len(start), [0.0] * len(start)
    for update in range(1, updates + 1):
        shares, gradient, samples = softmax(logits), [0.0] * len(start), 0
        while samples < BATCH:
            reply = chance.choices(range(len(start)), shares)[0]
            if not (given := reward(reply, chance)):
                continue
            samples += 1
            advantage = given - (mean_of(rewards) if compares else 0.0)
            rewards = [*rewards, given][-WINDOW:]
            for each, share in enumerate(shares):
                gradient[each] -= advantage * ((each == reply) - share) / BATCH
        for each, value in enumerate(gradient):
            first[each] = FIRST * first[each] + (1 - FIRST) * value
            second[each] = SECOND * second[each] + (1 - SECOND) * value**2
            step = first[each] / (1 - FIRST**update), math.sqrt(second[each] / (1 - SECOND**update))
            logits[each] -= RATE * step[0] / (step[1] + 1e-8)
    return softmax(logits)


def softmax(logits: Sequence[float]) -> list[float]:
    """Return the shares of ``logits``."""
    powers = [math.exp(each - max(logits)) for each in logits]
    return [each / sum(powers) for each in powers]
