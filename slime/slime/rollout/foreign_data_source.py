"""Adapter for a plugin's data source that does not derive from `DataSource`.

Guarantees: the rollout manager calls every data source by one protocol, and an optional method that it lacks is a
no-op. Rollout functions still get the plugin's own object.
"""

from __future__ import annotations

from typing import Any

from slime.rollout.data_source import DataSource
from slime.utils.types import Sample

OPTIONAL = (
    *("before_rollouts", "story", "mark", "weights_live", "step_refused", "gate_decided", "step_undone"),
    *("weights_restored", "person_restored", "check", "dispose"),
)


class ForeignDataSource(DataSource):
    """Calls a data source that does not derive from `DataSource`."""

    def __init__(self, source: Any) -> None:
        self._source = source
        for name in OPTIONAL:
            if hasattr(source, name):
                setattr(self, name, getattr(source, name))

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        """Return ``num_samples`` groups."""
        return self._source.get_samples(num_samples)

    def add_samples(self, samples: list[list[Sample]]) -> None:
        """Take groups back."""
        self._source.add_samples(samples)

    def save(self, rollout_id: int) -> None:
        """Save the position of a checkpoint."""
        self._source.save(rollout_id)

    def load(self, rollout_id: int | None = None) -> None:
        """Restore the position after ``rollout_id``."""
        self._source.load(rollout_id)


def with_optional_methods(source: Any) -> DataSource:
    """Return ``source`` if it derives from `DataSource`, else an adapter that adds the missing methods."""
    return source if isinstance(source, DataSource) else ForeignDataSource(source)


def marks(source: DataSource) -> bool:
    """Return whether the source implements ``mark``, so that it can save an earlier position."""
    return getattr(source.mark, "__func__", None) is not DataSource.mark
