"""Where metrics go: JSON lines always, TensorBoard and Weights & Biases by flag."""

from __future__ import annotations

from slime.tracking.trackers import Tracker, make_trackers

__all__ = ["Tracker", "make_trackers"]
