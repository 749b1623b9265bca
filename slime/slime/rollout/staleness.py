"""The bound on the age of the weights that sampled a group: ``--max-weight-staleness`` and ``--stale-samples``.

Guarantee: with ``drop``, no admitted group has a token from weights more than the bound behind those that the engines
serve at admission. With ``correct``, such groups are admitted and counted, and the loss weighs their tokens.
"""

from __future__ import annotations

from typing import Any

from slime.args import Arguments
from slime.exceptions import PluginError
from slime.rollout.engine_pool import live_weight_version
from slime.rollout.metrics import flatten


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
        self._drops = args.stale_samples == "drop"
        self._dropped = self._corrected = 0

    async def admits(self, group: list[Any]) -> bool:
        """Return whether a finished group may be trained on; a group without engine tokens is not stale."""
        bound = self._args.max_weight_staleness
        if bound is None or not any(sample.response_length for sample in flatten(group)):
            return True
        live = version_number(await live_weight_version(self._args))
        if live - oldest_version(group) <= bound:
            return True
        self._dropped += self._drops
        self._corrected += not self._drops
        return not self._drops

    def take_metrics(self) -> dict[str, Any]:
        """Return and reset the counts; empty without a bound."""
        if self._args.max_weight_staleness is None:
            return {}
        metrics = {"rollout/dropped_stale_groups": self._dropped, "rollout/corrected_stale_groups": self._corrected}
        self._dropped = self._corrected = 0
        return metrics


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
