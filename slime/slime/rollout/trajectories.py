"""Group the samples of one rollout (trajectory): an agent's run that was cut into one sample per step or branch.

Guarantee: pure. Samples with the same ``rollout_id`` belong together; without one, samples with the same group and
index do. Every other sample is its own rollout.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

from slime.utils.types import Sample


def rollout_ids(samples: Sequence[Sample]) -> list[int]:
    """Return each sample's rollout number, counted from 0 in order of appearance."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(_key(sample, position), len(numbers)) for position, sample in enumerate(samples)]


def _key(sample: Sample, position: int) -> Hashable:
    if sample.rollout_id is not None:
        return ("rollout", sample.rollout_id)
    if sample.group_index is not None and sample.index is not None:
        return ("sample", sample.group_index, sample.index)
    return ("alone", position)


def mask_sums(ids: Sequence[int], masks: Sequence[Sequence[int]]) -> list[int]:
    """Return, for each sample, the unmasked tokens of its whole rollout."""
    sums: dict[int, int] = defaultdict(int)
    for number, mask in zip(ids, masks, strict=True):
        sums[number] += sum(mask)
    return [sums[number] for number in ids]
