"""Turns of the ledger as conversations in JSON lines, the format of offline training and import.

One line per session: ``{"session_id", "turns": [{"type", "prompt", "response", "next_state", "trainable"}]}`` with
``type`` ``main`` or ``side``, ``prompt`` the request messages, ``response`` the assistant message, and ``next_state`` the
messages after it or null. ``trainable`` says whether the turn waits for a judge or gave a sample that was not dropped; for
an imported turn (`openclaw.ledger.importing`) it is the file's value. Where a turn has them, ``tools``,
``chat_template_kwargs``, ``verdict`` (`Verdict.to_dict`) and ``finish_reason`` (``length``: cut off) follow.

A part ``{"type": "image", "sha256": HEX}`` of a message is a picture; `write_pictures` writes the files ``HEX.png``.

Guarantees: read-only; sessions in the order of their first turn, turns in the order they were recorded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from groundwork.private_files import private, private_folder, writing
from openclaw.ledger.reports import TurnRecord
from openclaw.ledger.store import Ledger

CONVERSATIONS_NAME = "conversations.jsonl"
"""The file's name in a folder of recorded or collected turns."""
CUT_OFF = "length"
IMPORTED = "imported"
IMPORTED_NOT_TRAINABLE = "imported_not_trainable"


def conversations(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Yield each session of the ledger."""
    for session_id in ledger.session_ids():
        yield {"session_id": session_id, "turns": [turn_values(record) for record in ledger.export_turns(session_id)]}


def turn_values(record: TurnRecord) -> dict[str, Any]:
    """Return one turn in the conversation format."""
    turn, verdict = record.turn, record.verdict or record.kept
    to_judge = turn.state in ("pending", "unscored") or turn.reason == IMPORTED
    further = {
        "tools": turn.tools,
        "chat_template_kwargs": turn.chat_template_kwargs,
        "verdict": verdict and json.loads(json.dumps(verdict.to_dict())),  # lists, no tuples
        "finish_reason": turn.finish_reason if turn.finish_reason == CUT_OFF else None,
    }
    return {
        "type": turn.kind,
        "prompt": turn.messages,
        "response": turn.response_message,
        "next_state": turn.next_state,
        "trainable": to_judge or any(sample.state != "dropped" for sample in record.samples),
        **{name: value for name, value in further.items() if value},
    }


def write_conversations(
    ledger: Ledger, path: Path, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> int:
    """Write all sessions to ``path``, one JSON object per line, and return their number."""
    total = len(ledger.session_ids())

    def watched() -> Iterator[dict[str, Any]]:
        for number, conversation in enumerate(conversations(ledger), start=1):
            yield conversation
            on_progress(number, total)

    return write_lines(watched(), path, ledger.path)


def write_pictures(ledger: Ledger, folder: Path) -> int:
    """Write the pictures of the ledger to ``folder`` as ``SHA256.png`` and return their number; without any, make no folder."""
    count = 0
    for digest, file in ledger.picture_files():
        private_folder(folder)
        with open(folder / f"{digest}.png", "wb", opener=private) as target:
            target.write(file)
        count += 1
    return count


def write_lines(values: Iterable[dict[str, Any]], path: Path, *not_over: Path) -> int:
    """Write one JSON object per line, whole or not at all, and return their number.

    Raises:
        OutputError: the file cannot be written.
    """
    count = 0
    with writing(path, *not_over) as file:
        for value in values:
            file.write(json.dumps(value, ensure_ascii=True).encode() + b"\n")
            count += 1
    return count
