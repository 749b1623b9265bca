"""The graders by their ``--rm-type`` name, one for each of `slime.arguments.evaluation.GRADER_NAMES`."""

from __future__ import annotations

import dataclasses
import random

from slime.args import Arguments
from slime.arguments.evaluation import BOXED, grader_name
from slime.rollout.rm_hub import f1, gpqa, ifbench, math, math_dapo_utils, remote
from slime.rollout.rm_hub.extraction import last_boxed, whole
from slime.rollout.rm_hub.grader import Grader, needs_nothing
from slime.utils.types import Sample


async def _by_chance(args: Arguments, sample: Sample, answer: str) -> float:
    """Return 0 or 1 at random, a baseline for what a run learns without a signal."""
    return float(random.getrandbits(1))


GRADERS = {
    "math": math.GRADER,
    "dapo": math_dapo_utils.GRADER,
    "deepscaler": math.AFTER_THINKING,
    "f1": f1.GRADER,
    "gpqa": gpqa.GRADER,
    "ifbench": ifbench.GRADER,
    "random": Grader(extract=whole, compare=_by_chance, wrong=0.0, check=needs_nothing),
    "remote_rm": remote.GRADER,
}


def find_grader(name: str) -> Grader:
    """Return the grader ``name``; with the prefix ``boxed_`` it grades only the last ``\\boxed{}``.

    Raises:
        ConfigError: there is no such grader; the message lists all.
    """
    grader = GRADERS[grader_name(name)]
    return dataclasses.replace(grader, extract=last_boxed) if name.startswith(BOXED) else grader
