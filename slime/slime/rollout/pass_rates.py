"""pass@k: how often k answers to a prompt hold one that passes."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence

PASSING_REWARD = 1.0


def pass_at_k(groups: Sequence[Hashable], rewards: Sequence[float]) -> dict[int, float]:
    """Return for powers of two k the chance that k answers to a prompt hold one with a reward of 1 or more.

    The unbiased estimator ``1 - C(n - c, k) / C(n, k)`` of Chen et al. 2021 (arXiv:2107.03374), mean over the prompts with at
    least k answers. ``groups`` has the prompt of each answer.
    """
    answers: dict[Hashable, list[bool]] = defaultdict(list)
    for group, reward in zip(groups, rewards, strict=True):
        answers[group].append(reward >= PASSING_REWARD)
    most = max(map(len, answers.values()), default=0)
    rates = {}
    for k in (2**power for power in range(most.bit_length())):
        rates[k] = statistics.fmean(
            1.0 - math.comb(len(passed) - sum(passed), k) / math.comb(len(passed), k)
            for passed in answers.values()
            if len(passed) >= k
        )
    return rates
