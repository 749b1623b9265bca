"""A plugin's data source as the rollout manager calls it: with every optional method of `DataSource`.

Guarantees: a data source of any class is called by one protocol; an optional method that it lacks does nothing. Rollout
functions still get the plugin's own object, with whatever else it has.
"""

from __future__ import annotations

from typing import Any

from slime.rollout.data_source import DataSource
from slime.utils.types import Sample

OPTIONAL = ("before_rollouts", "mark", "weights_live", "check", "dispose")


class ForeignDataSource(DataSource):
    """Calls a data source that does not derive from `DataSource`."""

    def __init__(self, source: Any) -> None:
        self._source = source
        for name in OPTIONAL:
            if hasattr(source, name):
                setattr(self, name, getattr(source, name))

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        """Return that many groups."""
        return self._source.get_samples(num_samples)

    def add_samples(self, samples: list[list[Sample]]) -> None:
        """Take groups back."""
        self._source.add_samples(samples)

    def save(self, rollout_id: int) -> None:
        """Keep the position that belongs to a checkpoint."""
        self._source.save(rollout_id)

    def load(self, rollout_id: int | None = None) -> None:
        """Go back to the position after ``rollout_id``."""
        self._source.load(rollout_id)


def with_optional_methods(source: Any) -> DataSource:
    """Return ``source`` if it derives from `DataSource`, else what calls it and fills in the methods it lacks."""
    return source if isinstance(source, DataSource) else ForeignDataSource(source)


def marks(source: DataSource) -> bool:
    """Return whether the source has a ``mark`` of its own, so that it can save a position that lies behind."""
    return getattr(source.mark, "__func__", None) is not DataSource.mark
