"""Built-in ``--rollout-sample-filter-path``: keep samples in the batch without loss."""

from __future__ import annotations

from typing import Any

from slime.args import Arguments
from slime.rollout.metrics import flatten
from slime.utils.types import Sample


def mask_truncated(args: Arguments, groups: list[Any]) -> None:
    """Mask the loss of truncated samples, as in DAPO (arXiv:2503.14476, overlong filtering); they still count."""
    for sample in flatten(groups):
        sample.remove_sample = sample.remove_sample or sample.status == Sample.Status.TRUNCATED
