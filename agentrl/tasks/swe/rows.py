"""Rows for ``--prompt-data`` and files of instances, written by the commands of this package.

A prompt row is ``{"text": STATEMENT, "metadata": {"task_id": ID, "seed": 0}}``. Guarantee: no prompt row has more of an instance than its issue.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from agentrl.tasks.swe.instance import Instance
from agentrl.tasks.swe.source import InstanceSource


def write_prompts(source: InstanceSource, ids: Iterable[str], file: Path) -> int:
    """Write the prompt rows of instances; return their number.

    Raises:
        ConfigError: there is no such instance.
    """
    rows = [{"text": source.load(item).statement.strip(), "metadata": {"task_id": item, "seed": 0}} for item in ids]
    return _write(rows, file)


def write_instances(instances: Iterable[Instance], file: Path) -> int:
    """Write instances as rows, solutions included, for this machine's operator only; return their number."""
    return _write([instance.row() for instance in instances], file)


def _write(rows: list[dict[str, object]], file: Path) -> int:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return len(rows)
