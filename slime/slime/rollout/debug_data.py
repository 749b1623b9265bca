"""A share of a dumped rollout: ``--load-debug-rollout-data-subsample``."""

from __future__ import annotations

from slime.utils.misc import group_by
from slime.utils.types import Sample


def subsample(samples: list[Sample], share: float | None) -> list[Sample]:
    """Return about ``share`` of the groups, half from each end, whole and in order; at least one.

    Samples without a group index are groups of their own. None returns all.
    """
    if share is None:
        return samples
    numbers = [-1 - place if s.group_index is None else s.group_index for place, s in enumerate(samples)]
    groups = list(group_by(range(len(samples)), key=lambda place: numbers[place]).values())
    count = max(1, int(len(groups) * share))
    head = -(-count // 2)
    kept = [*groups[:head], *groups[len(groups) - (count - head) :]]
    return [samples[place] for group in kept for place in group]
