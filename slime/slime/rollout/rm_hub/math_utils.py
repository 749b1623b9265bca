"""Grade mathematics from reward functions of other folders: `extract_answer` and `grade_answer_verl`.

Guarantee: neither raises on a model's text, and a comparison ends within the limits of a grader worker.
"""

from __future__ import annotations

import logging

from slime.rollout.rm_hub.extraction import last_boxed
from slime.rollout.rm_hub.workers import GraderTimeout, pool

logger = logging.getLogger(__name__)


def extract_answer(passage: str) -> str | None:
    """Return the content of the last closed ``\\boxed{...}`` in ``passage``, or None."""
    return last_boxed(passage)


def grade_answer_verl(solution_str: str, ground_truth: str) -> bool:
    """Return whether a solution's boxed answer equals the truth, as text or as an expression.

    Args:
        solution_str: the reply; wrong without a box.
        ground_truth: the answer, or a whole solution with the answer in a box.
    """
    answer, truth = extract_answer(solution_str), str(ground_truth)
    boxed_truth = extract_answer(truth)
    truth = truth if boxed_truth is None else boxed_truth
    if answer is None or not truth.strip():
        return False
    try:
        return bool(pool().grade_blocking("equal_answers", answer=answer, labels=[truth]))
    except GraderTimeout as error:
        logger.warning("%s; the answer counts as wrong", error)
        return False
