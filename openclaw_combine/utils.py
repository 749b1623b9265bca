"""``inspect_sessions``: the contents of a folder of collected turns, as values and as lines."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from groundwork.command_line import CommandLine
from openclaw.exceptions import OpenClawError
from openclaw.ledger.conversations import conversations
from openclaw.ledger.store import Ledger
from openclaw.runs.folder import no_ledger
from openclaw.runtime.where import find_ledger

UNJUDGED = "SELECT session_id, COUNT(*) AS n FROM turns WHERE state IN ('waiting', 'unscored', 'pending', 'ended') GROUP BY session_id"


def inspect_sessions(path: str | Path) -> dict[str, list[dict[str, Any]]]:
    """Return the turns of each session by its id, oldest first, as `openclaw.ledger.conversations` writes them.

        for session_id, turns in inspect_sessions("./rollouts").items():
            print(session_id, len(turns), sum(turn["type"] == "main" for turn in turns))

    Args:
        path: a ledger, or a folder that has one: of a server, of ``collect_rollouts.py``, of `test_rollout`, of a run.

    Raises:
        FileNotFoundError: if there is no ledger.
    """
    with closing(_open(path)) as ledger:
        return {session["session_id"]: session["turns"] for session in conversations(ledger)}


def session_rows(path: str | Path) -> list[dict[str, Any]]:
    """Return a row per session: turns by kind, and how many have a next state, give samples or wait for a verdict.

    Args:
        path: as of `inspect_sessions`.

    Raises:
        FileNotFoundError: if there is no ledger.
    """
    with closing(_open(path)) as ledger:
        counted = ledger.database.rows(UNJUDGED)
        unjudged = {row["session_id"]: int(row["n"]) for row in counted}
        return [
            _row(conversation, unjudged.get(conversation["session_id"], 0)) for conversation in conversations(ledger)
        ]


def print_sessions(path: str | Path, begin: str = "") -> None:
    """Print a line per session whose id begins with ``begin``.

    Raises:
        FileNotFoundError: if there is no ledger.
    """
    for row in session_rows(path):
        if not row["session_id"].startswith(begin):
            continue
        print(
            f"{row['session_id']}: {row['main']} main and {row['side']} side turns, {row['with_next_state']} with a "
            f"next state, {row['trainable']} trainable{_not_yet(row['unjudged'])}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the sessions of the folder that the command line names; return the exit status."""
    parser = CommandLine(prog="python -m openclaw_combine.utils", description="Print a line per session of a folder.")
    parser.add_argument("folder", metavar="FOLDER", help="folder of collected turns, a run's folder, or a ledger")
    options = parser.parse_args(argv)
    try:
        print_sessions(options.folder)
    except (FileNotFoundError, OpenClawError) as error:
        print(f"inspect_sessions: {error}", file=sys.stderr)
        return 2
    return 0


def _open(path: str | Path) -> Ledger:
    file = find_ledger(Path(path))
    if file is None:
        raise FileNotFoundError(f"{no_ledger(Path(path))}; or of collected turns, which collect_rollouts.py writes")
    return Ledger(file)


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
