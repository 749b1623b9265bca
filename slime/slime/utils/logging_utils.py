"""Log metrics from the core and its plugins. Owns the process's trackers."""

from __future__ import annotations

from typing import Any

from slime.args import Arguments
from slime.tracking import Tracker, make_trackers

_trackers: list[Tracker] = []


def init_tracking(args: Arguments) -> None:
    """Open the trackers of this process; a second call is a no-op."""
    if not _trackers:
        _trackers.extend(make_trackers(args))


def log(args: Arguments, metrics: dict[str, Any], step_key: str) -> None:
    """Log ``metrics`` to every tracker.

    Raises:
        KeyError: ``metrics`` lacks ``step_key``.
    """
    if step_key not in metrics:
        raise KeyError(f"the metrics lack their step axis {step_key!r}; add it to {', '.join(sorted(metrics))}")
    init_tracking(args)
    for tracker in _trackers:
        tracker.log(metrics, step_key)


def finish_tracking(args: Arguments) -> None:
    """Close the trackers of this process."""
    while _trackers:
        _trackers.pop().finish()
