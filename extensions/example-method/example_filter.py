"""Filter of the example: drops groups with equal rewards, which teach nothing."""

from __future__ import annotations


def keep_group(args, group, **kwargs):
    """Return whether the rewards of the group's samples differ."""
    return len({sample.get_reward_value(args) for sample in group}) > 1
