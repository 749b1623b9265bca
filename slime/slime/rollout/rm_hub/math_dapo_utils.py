"""``--rm-type dapo``: compare the reply's last ``Answer:`` line with the label; return ``{"score": +-1, "acc", "pred"}``.

Prompt and reward have the form of DAPO (Yu et al. 2025, arXiv:2503.14476). Custom reward functions can call
:func:`compute_score` directly.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from slime.args import Arguments
from slime.rollout.rm_hub.extraction import answer_line, last_boxed
from slime.rollout.rm_hub.grader import Grader, needs_label
from slime.rollout.rm_hub.math import reference_answers
from slime.rollout.rm_hub.workers import GraderTimeout, pool
from slime.utils.types import Sample

logger = logging.getLogger(__name__)

NO_ANSWER = "[INVALID]"
TAIL_CHARACTERS = 100


def compute_score(
    solution_str: str,
    ground_truth: str,
    strict_box_verify: bool = False,
    pause_tokens_index: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return ``{"score": 1.0 or -1.0, "acc": bool, "pred": str or None}``; never raises on a model's text.

    Args:
        solution_str: the reply.
        ground_truth: the label.
        strict_box_verify: require the answer in a ``\\boxed{}`` (``pred`` is None without one), not after ``Answer:``.
        pause_tokens_index: character positions of pauses in the reply; with ``strict_box_verify`` only the text after
            the last one, and 100 characters before it, counts.
    """
    if strict_box_verify and pause_tokens_index:
        solution_str = solution_str[max(0, pause_tokens_index[-1] - TAIL_CHARACTERS) :]
    answer = last_boxed(solution_str) if strict_box_verify else answer_line(solution_str)
    if answer is None:
        return verdict(False, None if strict_box_verify else NO_ANSWER)
    try:
        equal = pool().grade_blocking("equal_answers", answer=answer, labels=[str(ground_truth)])
    except GraderTimeout as error:
        logger.warning("%s; the answer counts as wrong", error)
        equal = False
    return verdict(equal, answer)


def verdict(equal: bool, answer: str | None) -> dict[str, Any]:
    """Return the reward of an answer."""
    return {"score": 1.0 if equal else -1.0, "acc": equal, "pred": answer}


async def _compare(args: Arguments, sample: Sample, answer: str) -> dict[str, Any]:
    equal = await pool().grade("equal_answers", answer=answer, labels=reference_answers(sample))
    return verdict(equal, answer)


GRADER = Grader(extract=answer_line, compare=_compare, wrong=verdict(False, NO_ANSWER), check=needs_label)
