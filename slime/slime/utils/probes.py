"""A question to one version of the policy, and its answer; see `slime.rollout.before_push`. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Probe(NamedTuple):
    """A question to one version of the policy.

    Attributes:
        prompt_ids: ``[P]`` token ids, P at least 1.
        reply_ids: ``[R]`` ids of a stored reply to score; empty: none.
        max_new_tokens: length limit of a greedy reply to the prompt, in tokens; 0: none.

    Example:
        >>> opinion = Probe(prompt_ids=[1, 2], reply_ids=[3, 4])  # how likely is this stored reply now?
        >>> task = Probe(prompt_ids=[1, 2], max_new_tokens=64)  # what would the policy reply?
    """

    prompt_ids: Sequence[int]
    reply_ids: Sequence[int] = ()
    max_new_tokens: int = 0


class Answer(NamedTuple):
    """The answer of one version to a probe.

    Attributes:
        log_probs: ``[R]`` natural log probabilities of the stored reply's tokens at temperature 1.
        greedy_ids: ids of the greedy reply, with the token that ends it; empty if none was asked for.
        finished: whether the greedy reply ended by itself, not at its length limit.
    """

    log_probs: list[float]
    greedy_ids: list[int]
    finished: bool
