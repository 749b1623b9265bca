"""Log metrics: always to JSON lines, and to TensorBoard and Weights & Biases if a flag enables them."""

from __future__ import annotations

from slime.tracking.trackers import Tracker, make_trackers

__all__ = ["Tracker", "make_trackers"]
