"""``--rm-type math``: 1 if the last ``\\boxed{}`` of the reply equals the label, else 0.

``--rm-type deepscaler`` is the same, but only text after the thinking counts, and a reply that never ends it gets 0.
"""

from __future__ import annotations

from slime.args import Arguments
from slime.rollout.rm_hub.extraction import boxed_after_thinking, last_boxed
from slime.rollout.rm_hub.grader import Grader, needs_label, references
from slime.rollout.rm_hub.workers import pool
from slime.utils.types import Sample


def reference_answers(sample: Sample) -> list[str]:
    """Return the labels of a sample; for a whole solution, its last boxed answer."""
    return [label if (boxed := last_boxed(label)) is None else boxed for label in references(sample)]


async def equals_label(args: Arguments, sample: Sample, answer: str) -> float:
    """Return 1.0 if the answer equals a label, else 0.0."""
    return float(await pool().grade("equal_answers", answer=answer, labels=reference_answers(sample)))


GRADER = Grader(extract=last_boxed, compare=equals_label, wrong=0.0, check=needs_label)
AFTER_THINKING = Grader(extract=boxed_after_thinking, compare=equals_label, wrong=0.0, check=needs_label)
