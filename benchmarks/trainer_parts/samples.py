"""Training data of a benchmark: samples of random tokens, with what a policy loss reads."""

from __future__ import annotations

import math
import random
from typing import Any

# Lengths of conversations spread like this: log-normal (most are short, a few are long), cut to a range.
SPREAD = 0.9


def mixed_lengths(count: int, longest: int, seed: int = 0) -> list[int]:
    """Lengths of ``count`` samples from ``longest`` / 32 to ``longest``, the longest there once at least."""
    generator = random.Random(seed)
    median = longest / 6
    drawn = [generator.lognormvariate(0.0, SPREAD) * median for _ in range(count - 1)]
    return [longest, *(int(min(longest, max(longest / 32, length))) for length in drawn)]


def samples(lengths: list[int], vocabulary: int, seed: int = 0, *, top: int = 0) -> dict[str, Any]:
    """Samples of ``lengths`` tokens under the names of the training data; a third of each, rounded up, is the prompt.

    With ``top`` each response token has that many tokens of a teacher, equally likely and half of its probability together.
    """
    generator = random.Random(seed)
    responses = [length - -(-length // 3) for length in lengths]
    teacher: dict[str, Any] = {}
    if top:
        chosen = [[generator.sample(range(vocabulary), top) for _ in range(response)] for response in responses]
        even = [math.log(0.5 / top)] * top
        teacher = {
            "teacher_topk_indices": chosen,
            "teacher_topk_log_probs": [[even] * response for response in responses],
        }
    return teacher | {
        "tokens": [[generator.randrange(vocabulary) for _ in range(length)] for length in lengths],
        "total_lengths": list(lengths),
        "response_lengths": responses,
        "loss_masks": [[1] * response for response in responses],
        "rewards": [generator.choice([-1.0, 1.0]) for _ in lengths],
        "rollout_log_probs": [[-9.0 - generator.random() / 10 for _ in range(response)] for response in responses],
    }
