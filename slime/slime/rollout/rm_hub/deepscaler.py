"""``--rm-type deepscaler``: as ``math``, but only what follows the thinking counts, and a reply that never ends it gets 0."""

from __future__ import annotations

from slime.rollout.rm_hub.extraction import boxed_after_thinking
from slime.rollout.rm_hub.grader import Grader, needs_label
from slime.rollout.rm_hub.math import equals_label

GRADER = Grader(extract=boxed_after_thinking, compare=equals_label, wrong=0.0, check=needs_label)
