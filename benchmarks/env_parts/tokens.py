"""Tokens that a training step processes for an agent's episode, with turns merged and one by one.

Lengths are log-normal around medians that terminal agents show: a long first prompt, replies and tool outputs of some
hundred tokens. Each prompt is the whole conversation so far, as an engine reads it. The ids are random and mean nothing.
"""

from __future__ import annotations

import math
import random

from slime.rollout.segments import SampledTurn, alone, merge

FIRST_PROMPT, REPLY, TOOL_OUTPUT = 1500, 180, 350
"""Medians, in tokens."""
SPREAD = 0.6
"""Standard deviation of the logarithm."""
VOCABULARY = 150_000


def episode_turns(turns: int, seed: int) -> list[SampledTurn]:
    """Return the turns of an episode whose prompts extend each other."""
    generator = random.Random(seed)

    def some(median: int) -> list[int]:
        length = max(1, round(median * math.exp(generator.gauss(0, SPREAD))))
        return [generator.randrange(VOCABULARY) for _ in range(length)]

    context, found = some(FIRST_PROMPT), []
    for _ in range(turns):
        reply = some(REPLY)
        found.append(SampledTurn(tuple(context), tuple(reply), (-0.5,) * len(reply)))
        context = [*context, *reply, *some(TOOL_OUTPUT)]
    return found


def processed(episodes: int, turns: int) -> dict[str, float]:
    """Return the tokens of ``episodes`` both ways, their ratio, and the sampled tokens, which are the same."""
    merged = single = sampled = 0
    for seed in range(episodes):
        found = episode_turns(turns, seed)
        merged += sum(len(segment.tokens) for segment in merge(found))
        single += sum(len(segment.tokens) for segment in alone(found))
        sampled += sum(len(turn.response_ids) for turn in found)
    return {
        "episodes": episodes,
        "turns": turns,
        "merged_tokens_per_episode": round(merged / episodes),
        "single_tokens_per_episode": round(single / episodes),
        "sampled_tokens_per_episode": round(sampled / episodes),
        "ratio": round(single / merged, 3),
    }
