"""What a run has logged, for tests; a metric that no table declares fails them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from groundwork.data_rows import json_objects
from openclaw.training.step_metrics import undeclared_metrics


def logged_records(run_dir: Path, *, of_plugins: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the records of a run's trackers, oldest first.

    Args:
        run_dir: of the run.
        of_plugins: metrics that the run's plugins add.

    Raises:
        AssertionError: another metric is on no reference page; declare it with its unit and meaning.
    """
    records = [record for _, record in json_objects(run_dir / "metrics.jsonl")]
    names = {name for record in records for name in record}.difference(of_plugins)
    assert undeclared_metrics(names) == [], "declare these metrics in step_metrics.py"
    return records
