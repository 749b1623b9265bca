"""The graders by their ``--rm-type`` name, one for each of `slime.arguments.rewards.GRADER_NAMES`."""

from __future__ import annotations

import dataclasses

from slime.arguments.rewards import BOXED, grader_name
from slime.rollout.rm_hub import deepscaler, f1, gpqa, ifbench, math, math_dapo_utils, random, remote
from slime.rollout.rm_hub.extraction import last_boxed
from slime.rollout.rm_hub.grader import Grader

GRADERS = {
    "math": math.GRADER,
    "dapo": math_dapo_utils.GRADER,
    "deepscaler": deepscaler.GRADER,
    "f1": f1.GRADER,
    "gpqa": gpqa.GRADER,
    "ifbench": ifbench.GRADER,
    "random": random.GRADER,
    "remote_rm": remote.GRADER,
}


def find_grader(name: str) -> Grader:
    """Return the grader called ``name``; with the prefix ``boxed_`` it grades what the last ``\\boxed{}`` holds.

    Raises:
        ConfigurationError: naming those there are.
    """
    grader = GRADERS[grader_name(name)]
    return dataclasses.replace(grader, extract=last_boxed) if name.startswith(BOXED) else grader
