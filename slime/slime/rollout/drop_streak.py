"""Detect rollouts that drop one group after another: warn about filters, end a rollout that cannot progress.

A filter may rightly drop many groups, so it only draws warnings: after `WARN_BATCHES` batches in a row, and at each
doubling. Groups without samples, or aborted by nothing, are an error of the generate function or what it depends on:
`MOST_EMPTY_BATCHES` batches of nothing else, but at least `MOST_EMPTY` groups, end the rollout.
"""

from __future__ import annotations

import logging
from collections import Counter

from slime.args import Arguments
from slime.exceptions import PluginError

logger = logging.getLogger(__name__)

EMPTY, ABORTED = "empty", "aborted"
WARN_BATCHES = 4
MOST_EMPTY_BATCHES = 16
MOST_EMPTY = 64


class DropStreak:
    """The groups of one rollout that were dropped since the last kept one."""

    def __init__(self, args: Arguments) -> None:
        self._args = args
        self._batch = args.rollout_batch_size
        self._warn_at = WARN_BATCHES * self._batch
        self._reasons: Counter[str] = Counter()

    def end(self) -> None:
        """Reset the streak after a group that was kept or could be."""
        self._reasons.clear()
        self._warn_at = WARN_BATCHES * self._batch

    def add(self, reason: str, kept: int) -> None:
        """Count a dropped group; ``kept`` is the rollout's number of kept groups.

        Raises:
            PluginError: the generate function returns only empty lists and aborted samples.
        """
        self._reasons[reason] += 1
        count = self._reasons.total()
        if self._unusable() == count >= max(MOST_EMPTY, MOST_EMPTY_BATCHES * self._batch):
            raise PluginError(
                f"--custom-generate-function-path {self._args.custom_generate_function_path} returned no sample, or aborted samples "
                f"without a reward, for {count} groups in a row; return at least one sample, with a reward and "
                "remove_sample=True if it must not be trained on"
            )
        if count >= self._warn_at:
            self._warn_at *= 2
            logger.warning("%s", self._advice(count, kept))

    def _unusable(self) -> int:
        return self._reasons[EMPTY] + self._reasons[ABORTED]

    def _advice(self, count: int, kept: int) -> str:
        reasons = ", ".join(f"{reason} {number}" for reason, number in self._reasons.most_common())
        filtered = self._reasons.total() - self._unusable()
        change = (
            f"loosen --dynamic-sampling-filter-path {self._args.dynamic_sampling_filter_path}, raise --rollout-temperature or "
            "--n-samples-per-prompt, or take prompts of another difficulty"
            if filtered
            else f"check --custom-generate-function-path {self._args.custom_generate_function_path}"
        )
        return f"{count} groups in a row were dropped ({reasons}), {kept} of {self._batch} are kept; {change}"
