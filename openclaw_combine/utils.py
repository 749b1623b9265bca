"""``inspect_sessions``: shows the contents of a folder of collected turns."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from openclaw.ledger.conversations import conversations
from openclaw.ledger.store import Ledger
from openclaw.runtime.where import LEDGER_NAME


def inspect_sessions(path: str | Path) -> list[dict[str, Any]]:
    """Print and return the rows of `session_rows`.

    Raises:
        FileNotFoundError: if there is no ledger.
    """
    rows = session_rows(path)
    for row in rows:
        print(
            f"{row['session_id']}: {row['main']} main and {row['side']} side turns, {row['with_next_state']} with a "
            f"next state, {row['trainable']} trainable"
        )
    return rows


def session_rows(path: str | Path) -> list[dict[str, Any]]:
    """Return a row per session: its turns by kind, how many have a next state, how many may be trained.

    Args:
        path: a ledger, or a folder that holds one (of a server, of ``collect_rollouts.py``, of `test_rollout`).

    Raises:
        FileNotFoundError: if there is no ledger.
    """
    file = Path(path) / LEDGER_NAME if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{path} has no {LEDGER_NAME}; collect_rollouts.py writes one")
    with closing(Ledger(file)) as ledger:
        return [_row(conversation) for conversation in conversations(ledger)]


def _row(conversation: dict[str, Any]) -> dict[str, Any]:
    turns = conversation["turns"]
    kinds = Counter(turn["type"] for turn in turns)
    return {
        "session_id": conversation["session_id"],
        "turns": len(turns),
        "main": kinds["main"],
        "side": kinds["side"],
        "with_next_state": sum(bool(turn["next_state"]) for turn in turns),
        "trainable": sum(turn["trainable"] for turn in turns),
    }
