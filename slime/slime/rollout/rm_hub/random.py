"""``--rm-type random``: 0 or 1 by chance, to see what a run learns from nothing."""

from __future__ import annotations

import random

from slime.args import Arguments
from slime.rollout.rm_hub.extraction import whole
from slime.rollout.rm_hub.grader import Grader, needs_nothing
from slime.utils.types import Sample


async def _compare(args: Arguments, sample: Sample, answer: str) -> float:
    return float(random.getrandbits(1))


GRADER = Grader(extract=whole, compare=_compare, wrong=0.0, check=needs_nothing)
