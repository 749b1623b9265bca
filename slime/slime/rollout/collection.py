"""Sort finished groups, in the default and in the asynchronous rollout.

Guarantees: every finished group is kept, spare, or dropped with a counted reason. The groups of a rollout are in prompt
order. A group that returns to the data source either continues exactly where it stopped or starts over.

A rollout that drops one group after another is noticed. A filter may rightly drop many, so it only draws warnings: after
`WARN_BATCHES` batches in a row, and at each doubling. Groups without samples, or aborted by nothing, are an error of the
generate function or what it depends on: `MAX_EMPTY_BATCHES` batches of nothing else, but at least `MAX_EMPTY` groups,
end the rollout.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from slime.args import Arguments
from slime.exceptions import PluginError
from slime.rollout.base_types import RolloutFnTrainOutput
from slime.rollout.filter_hub.base_types import call_dynamic_filter, should_drop_dynamic_filter_output
from slime.rollout.metrics import flatten
from slime.utils.misc import load_function
from slime.utils.types import Sample

logger = logging.getLogger(__name__)

EMPTY, ABORTED = "empty", "aborted"
WARN_BATCHES = 4
MAX_EMPTY_BATCHES = 16
MAX_EMPTY = 64


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
        if self._unusable() == count >= max(MAX_EMPTY, MAX_EMPTY_BATCHES * self._batch):
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


Group = list[Any]


class Collection:
    """The finished groups of one rollout, sorted by the dynamic sampling filter."""

    def __init__(self, args: Arguments) -> None:
        self._args = args
        path = args.dynamic_sampling_filter_path
        self._filter = load_function(path) if path else None
        self.kept: list[Group] = []
        self.spare: list[tuple[Group, str]] = []
        self._finished: list[Group] = []
        self._dropped: Counter[str] = Counter()
        self._streak = DropStreak(args)

    def add(self, group: Group, remaining: int | None = None) -> bool:
        """Take a finished group; return False if the batch does not grow, at least for now.

        A rejected group with ``keep_when_insufficient`` becomes a spare. If dropping it would leave fewer groups than a
        batch, of the ``remaining`` requested ones, the batch takes the oldest spare; None: more can always be
        requested.

        A group without samples is dropped as ``empty``. One with an aborted sample without a reward, although nothing
        aborted it, is dropped as ``aborted``. No filter sees either.

        Raises:
            PluginError: too many such groups in a row, see `slime.rollout.collection`.
        """
        if not flatten(group):
            self._drop(EMPTY)
            return False
        if not is_whole(group):
            self._drop(ABORTED)
            return False
        verdict = call_dynamic_filter(self._filter, self._args, group)
        self._finished.append(group)
        reason = verdict.reason or "filter"
        if not (verdict.keep or verdict.keep_when_insufficient):
            self._drop(reason)
            return False
        self._streak.end()
        if verdict.keep:
            self.kept.append(group)
            return True
        self.spare.append((group, reason))
        wanted = self._args.rollout_batch_size
        if remaining is None or should_drop_dynamic_filter_output(
            verdict, remaining_batch_size=remaining, target_data_size=wanted
        ):
            return False
        self.kept.append(self.spare.pop(0)[0])
        return True

    def _drop(self, reason: str) -> None:
        self._dropped[reason] += 1
        self._streak.add(reason, len(self.kept))

    def fill_up(self, wanted: int) -> int:
        """Keep spare groups, oldest first, until ``wanted`` are kept; return how many that took."""
        count = max(0, wanted - len(self.kept))
        taken, self.spare = self.spare[:count], self.spare[count:]
        self.kept += [group for group, _ in taken]
        return len(taken)

    def output(self, get_samples: Any) -> RolloutFnTrainOutput:
        """Run the filters of a finished rollout and return it; the second filter gets ``get_samples``."""
        args = self._args
        self.kept.sort(key=first_index)
        if args.rollout_sample_filter_path:
            load_function(args.rollout_sample_filter_path)(args, self.kept)
        if args.rollout_all_samples_process_path:
            groups = sorted(self._finished, key=first_index)
            load_function(args.rollout_all_samples_process_path)(args, groups, get_samples)
        dropped = self._dropped + Counter(reason for _, reason in self.spare)
        metrics = {f"rollout/dynamic_filter/drop_{reason}": count for reason, count in dropped.items()}
        return RolloutFnTrainOutput(samples=self.kept, metrics=dict(metrics))


def first_index(group: Group) -> int:
    """Return the index of a group's first sample."""
    return flatten(group)[0].index or 0


def to_go_on(group: Group, prompt: Group, rollout_id: int) -> Group:
    """Return an aborted group as it goes back to the data source: with its tokens, or as its ``prompt``.

    A list that a plugin made of one sample cannot continue midway: unless all of it is finished, the group starts over.
    Samples with tokens record the rollout that started them in ``metadata["start_rollout_id"]``.
    """
    if any(isinstance(one, list) for one in group) and not is_whole(group):
        return prompt
    for sample in flatten(group):
        if sample.response_length:
            sample.metadata.setdefault("start_rollout_id", rollout_id)
    return group


def is_whole(group: Sequence[Any]) -> bool:
    """Return whether every sample of a group has its response and reward after an abort."""
    return all(sample.status != Sample.Status.ABORTED or sample.reward is not None for sample in flatten(group))
