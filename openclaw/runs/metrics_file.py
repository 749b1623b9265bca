"""Reads ``metrics.jsonl`` of a run's folder, which `slime.tracking` writes.

Guarantees: memory holds the asked metrics only. A line that the run is still writing is left out, and so is a damaged
one. Where a run went back to a checkpoint, a step has the values of its last time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NAME = "metrics.jsonl"
MISMATCH = "train/train_rollout_kl"
MISMATCH_LIMIT = 0.01
"""Nats per token, above which the run warns, too (`slime.ray.reports.MismatchAlarm`)."""
Series = dict[int, float]
"""A metric by step, in the order of the steps."""


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the readable lines of a metrics file, oldest first; none if there is no file."""
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield row


def read_series(path: Path, wanted: Callable[[str], bool]) -> dict[str, Series]:
    """Return the series of the metrics whose names are ``wanted``, without values that are not finite numbers."""
    results: dict[str, Series] = {}
    for row in rows(path):
        step = row.get(str(row.get("step_key")))
        if not isinstance(step, int | float):
            continue
        for name, value in row.items():
            if wanted(name) and isinstance(value, int | float) and math.isfinite(value):
                results.setdefault(name, {})[int(step)] = float(value)
    return {name: dict(sorted(series.items())) for name, series in results.items()}
