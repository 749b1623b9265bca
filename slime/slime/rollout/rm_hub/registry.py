"""The graders by their ``--rm-type`` name."""

from __future__ import annotations

import dataclasses

from slime.exceptions import ConfigurationError
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
BOXED = "boxed_"
REWARD_KEYS = {"dapo": "score"}


def find_grader(name: str) -> Grader:
    """Return the grader called ``name``; with the prefix ``boxed_`` it grades what the last ``\\boxed{}`` holds.

    Raises:
        ConfigurationError: naming those there are.
    """
    grader = GRADERS.get(name.removeprefix(BOXED))
    if grader is None:
        known = ", ".join(sorted(GRADERS))
        raise ConfigurationError(f"no grader {name!r}; there are {known}, each also as {BOXED}NAME")
    return dataclasses.replace(grader, extract=last_boxed) if name.startswith(BOXED) else grader


def reward_key_of(name: str) -> str | None:
    """Return the key to train on when the grader's reward is a dict."""
    return REWARD_KEYS.get(name.removeprefix(BOXED))


def is_remote(name: str) -> bool:
    """Return whether the grader asks the server at ``--rm-url``."""
    return name.removeprefix(BOXED) == "remote_rm"
