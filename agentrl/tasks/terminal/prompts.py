"""Tasks as rows for ``--prompt-data``: ``{"task": {...}, "metadata": {"task_id": ..., "seed": 0}}``.

``task`` is what the loop is asked about (``--input-key task``): name, path, instruction and source of the task. Guarantee: the rows
name the tasks that the same source offers, each once, in a fixed order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentrl.tasks.terminal.source import TaskSource

DATA_SOURCES = {"bash_commands": "generated", "harbor": "harbor", "tbench": "terminal_bench", "jsonl": "jsonl"}


def row(source: TaskSource, task_id: str) -> dict[str, Any]:
    """Return the row of a task.

    Raises:
        ConfigError: its folder cannot run.
    """
    task = source.load(task_id)
    return {
        "task": {
            "task_name": task.name,
            "task_path": task_id,
            "instruction": task.instruction.strip(),
            "data_source": DATA_SOURCES[source.task_type],
        },
        "metadata": {"task_id": task_id, "seed": 0},
    }


def write_rows(source: TaskSource, ids: Iterable[str], file: Path) -> int:
    """Write the rows of tasks to a file; return their number.

    Raises:
        ConfigError: a task cannot run.
    """
    rows = [row(source, item) for item in ids]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in rows))
    return len(rows)
