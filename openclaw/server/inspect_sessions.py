"""``inspect_sessions``: shows the contents of a folder of collected turns."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from openclaw.ledger.conversations import conversations
from openclaw.ledger.store import Ledger
from openclaw.runtime.where import LEDGER_NAME

UNJUDGED = "SELECT session_id, COUNT(*) AS n FROM turns WHERE state IN ('waiting', 'unscored', 'pending', 'ended') GROUP BY session_id"


def inspect_sessions(path: str | Path) -> list[dict[str, Any]]:
    """Print and return the rows of `session_rows`.

    Raises:
        FileNotFoundError: if there is no ledger.
    """
    rows = session_rows(path)
    for row in rows:
        print(
            f"{row['session_id']}: {row['main']} main and {row['side']} side turns, {row['with_next_state']} with a "
            f"next state, {row['trainable']} trainable{_not_yet(row['unjudged'])}"
        )
    return rows


def session_rows(path: str | Path) -> list[dict[str, Any]]:
    """Return a row per session: turns by kind, and how many have a next state, give samples or wait for a verdict.

    Args:
        path: a ledger, or a folder that holds one (of a server, of ``collect_rollouts.py``, of `test_rollout`).

    Raises:
        FileNotFoundError: if there is no ledger.
    """
    file = Path(path) / LEDGER_NAME if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{path} has no {LEDGER_NAME}; collect_rollouts.py writes one")
    with closing(Ledger(file)) as ledger:
        counted = ledger.database.rows(UNJUDGED)
        unjudged = {row["session_id"]: int(row["n"]) for row in counted}
        return [
            _row(conversation, unjudged.get(conversation["session_id"], 0)) for conversation in conversations(ledger)
        ]


def _not_yet(unjudged: int) -> str:
    """Return the words about turns that no judge has read, which may still become trainable."""
    return f", {unjudged} not judged yet" if unjudged else ""


def _row(conversation: dict[str, Any], unjudged: int) -> dict[str, Any]:
    turns = conversation["turns"]
    kinds = Counter(turn["type"] for turn in turns)
    return {
        "session_id": conversation["session_id"],
        "turns": len(turns),
        "main": kinds["main"],
        "side": kinds["side"],
        "with_next_state": sum(bool(turn["next_state"]) for turn in turns),
        "trainable": sum(turn["trainable"] for turn in turns),
        "unjudged": unjudged,
    }
