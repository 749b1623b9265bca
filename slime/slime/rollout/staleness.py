"""The bound on the age of the weights that sampled a group: ``--max-weight-staleness`` and ``--stale-samples``.

Guarantee: with ``drop``, no admitted group has a token from weights more than the bound behind those that the engines
serve at admission. With ``mask``, none trains such a token: long episodes keep what newer weights sampled, and a group of which
nothing is left is dropped. With ``correct``, such groups are admitted and counted, and the loss weighs their tokens.
"""

from __future__ import annotations

from typing import Any

from slime.args import Arguments
from slime.exceptions import PluginError
from slime.rollout.engine_access import live_weight_version
from slime.rollout.metrics import flatten
from slime.utils.types import Sample


def version_number(version: str) -> int:
    """Return a weight version as a number; an engine's initial ``default`` is 0.

    Raises:
        ValueError: the version is not a number.
    """
    if version != "default" and not version.isdigit():
        raise ValueError(f"the engines serve weight version {version!r}; --max-weight-staleness needs numbers")
    return 0 if version == "default" else int(version)


class StalenessBound:
    """Checks finished groups, and counts them until `take_metrics` is called."""

    def __init__(self, args: Arguments) -> None:
        self._args = args
        self._mode = args.stale_samples
        self._dropped = self._corrected = self._masked = 0

    async def admits(self, group: list[Any]) -> bool:
        """Return whether a finished group may be trained on; a group without engine tokens is not stale.

        With ``mask`` the loss masks of an admitted group are changed.
        """
        bound = self._args.max_weight_staleness
        if bound is None or not any(sample.response_length for sample in flatten(group)):
            return True
        live = version_number(await live_weight_version(self._args))
        if live - oldest_version(group) <= bound:
            return True
        if self._mode == "correct":
            self._corrected += 1
            return True
        if self._mode == "mask":
            masked = sum(mask_stale(sample, live, bound) for sample in flatten(group))
            if any(any(sample.loss_mask or []) for sample in flatten(group)):
                self._masked += masked
                return True
        self._dropped += 1
        return False

    def take_metrics(self) -> dict[str, Any]:
        """Return and reset the counts; empty without a bound."""
        if self._args.max_weight_staleness is None:
            return {}
        metrics = {
            "rollout/dropped_stale_groups": self._dropped,
            "rollout/corrected_stale_groups": self._corrected,
            "rollout/masked_stale_tokens": self._masked,
        }
        self._dropped = self._corrected = self._masked = 0
        return metrics


def mask_stale(sample: Sample, live: int, bound: int) -> int:
    """Zero the loss mask of tokens whose weights are more than ``bound`` updates away from ``live``; return how many it was.

    Weights that were undone by restoring a checkpoint are ahead of the live ones, and as stale as older ones. All tokens of a
    sample without spans are as old as its oldest weights.
    """
    spans = sample.weight_spans or [[version, 0, sample.response_length] for version in sample.weight_versions]
    mask = [1] * sample.response_length if sample.loss_mask is None else list(sample.loss_mask)
    before = sum(mask)
    for version, start, end in spans:
        if abs(live - version_number(str(version))) > bound:
            mask[start:end] = [0] * (end - start)
    sample.loss_mask = mask
    return before - sum(mask)


def oldest_version(group: list[Any]) -> int:
    """Return the oldest weight version that sampled a token of a non-empty group.

    Raises:
        PluginError: samples lack their weight versions.
    """
    samples = [sample for sample in flatten(group) if sample.response_length]
    silent = [sample.index for sample in samples if not sample.weight_versions]
    if silent:
        raise PluginError(
            f"samples {silent} have no weight_versions, which --max-weight-staleness needs; let the generate function call "
            "sample.update_from_meta_info, or remove the flag"
        )
    return min(version_number(version) for sample in samples for version in sample.weight_versions)
