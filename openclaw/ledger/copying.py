"""Copies the turns of a run into the ledger of another run, with their ids, verdicts and samples.

Guarantees: a copied row has the bits of its source: ids, log-probabilities, verdict, the teacher's numbers, rewards and
baselines, and its pictures. A sample that a step had used is ready again; one that had been dropped stays dropped. The samples come in the
order of their batches, so the same batch size gives the same batches (openclaw.ledger.samples hands out the oldest
first). The source is only read. Copying again adds nothing: a copy keeps the turn's id. One transaction copies all.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from openclaw.ledger.codec import decode_turn, decode_verdict, encode_turn
from openclaw.ledger.episode_records import EPISODE
from openclaw.ledger.importing import redacted_verdict
from openclaw.ledger.passes import suffixed, turn_of_pass
from openclaw.ledger.pictures import copy_pictures
from openclaw.ledger.records import REDACTED
from openclaw.ledger.store import Ledger

ORDER = "CASE WHEN state IN ('leased', 'trained') THEN rollout_id ELSE 9223372036854775807 END"
COPIED = "(kind = 'main' OR segment IS NOT NULL)"
"""Which turns are copied: an episode trains side turns, too."""
MERGED = "merged"
"""Outcome of a turn that a sample of an episode holds together with others."""


@dataclass
class Copied:
    """Counts: ``turns`` by outcome, ``samples`` by state, turns already ``known``.

    ``merged`` is how many turns of episodes are in samples.
    """

    turns: Counter[str] = field(default_factory=Counter[str])
    samples: Counter[str] = field(default_factory=Counter[str])
    known: int = 0
    merged: int = 0


def copy_run(
    source: Ledger,
    target: Ledger,
    sessions: Collection[str],
    *,
    judge_again: bool = False,
    number: int = 1,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Copied:
    """Copy the turns of ``sessions`` that have token ids, once: main turns, and all that samples of episodes hold.

    Turns whose scores are being renewed stay behind. Episodes keep their samples, since no judge reads them.

    Args:
        source: of a run.
        target: of the new run; its redaction applies.
        sessions: which conversations.
        judge_again: leave verdicts and samples behind, so that the turns are judged here.
        number: of the pass through the data.
        on_progress: called with the number of conversations done and in total.
    """
    result, new = Copied(), dict[str, bool]()
    with target.transaction() as connection:
        for done, session_id in enumerate(sessions, start=1):
            _copy_session(source, target, connection, session_id, number, result, new, judge_again)
            on_progress(done, len(sessions))
        _copy_samples(source, target, connection, new, number, result, judge_again)
    return result


def _copy_session(
    source: Ledger,
    target: Ledger,
    connection: sqlite3.Connection,
    session_id: str,
    number: int,
    result: Copied,
    new: dict[str, bool],
    judge_again: bool,
) -> None:
    rows = source.rows(
        f"SELECT * FROM turns WHERE session_id = ? AND {COPIED} AND length(prompt_ids) > 0"
        " AND state <> 'unscored' ORDER BY number",
        (session_id,),
    )
    own_session = suffixed(session_id, number)
    for row in rows:
        turn_id = turn_of_pass(row["id"], number)
        if connection.execute("SELECT 1 FROM turns WHERE id = ?", (turn_id,)).fetchone() is not None:
            result.known += 1
            continue
        [session] = source.rows("SELECT * FROM sessions WHERE id = ?", (session_id,))
        ended = session["ended_at"] or target.clock()
        closed = None if judge_again else session["closed_at"]
        connection.execute(
            "INSERT INTO sessions (id, started_at, ended_at, closed_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (own_session, session["started_at"], ended, closed),
        )
        outcome = _copy_turn(source, target, connection, row, turn_id, own_session, judge_again)
        if outcome == MERGED:
            result.merged += 1
        else:
            result.turns[outcome] += 1
        if outcome != REDACTED:
            copy_pictures(source, connection, row["id"], turn_id)
        new[row["id"]] = outcome == "judged"


def _copy_turn(
    source: Ledger,
    target: Ledger,
    connection: sqlite3.Connection,
    row: sqlite3.Row,
    turn_id: str,
    session_id: str,
    judge_again: bool,
) -> str:
    """Copy one turn with its feedback and verdict; return its state, `MERGED`, or why it gives no sample."""
    values: dict[str, Any] = {**dict(row), "id": turn_id, "session_id": session_id, "segment": None, "copied": 1}
    del values["number"]
    if target.redaction is not None:
        turn = decode_turn(row)
        redacted = turn.redacted(target.redaction)
        if redacted != turn:
            values |= {**encode_turn(redacted), "id": turn_id, "session_id": session_id}
            if redacted.reason == REDACTED:
                values |= {"state": "excluded", "reason": REDACTED}
    verdict = source.rows("SELECT * FROM verdicts WHERE turn_id = ?", (row["id"],))
    if not judge_again and any(redacted_verdict(said, target) != said for said in map(decode_verdict, verdict)):
        values |= {"state": "excluded", "reason": REDACTED}  # its samples may have the judge's words, too
    state, reason = values["state"], values["reason"]
    if state == "excluded":
        _insert(connection, "turns", values)
        return reason or MERGED
    if state == "waiting":
        state, reason = "ended", "no_next_state"
    if state != "judged":
        verdict = []
    if state == "judged" and judge_again:
        state, reason, verdict = "pending", None, []
    path = {"ended": ["ended"], "pending": ["pending"], "judged": ["pending", "judged"]}[state]
    fresh = {"judge_attempts": 0, "judge_error": None, "not_before": 0.0, "reason": None}
    _insert(connection, "turns", {**values, **fresh, "state": "waiting"})
    for step in path:
        target.update_one(connection, "turns", turn_id, state=step)
    target.update_one(connection, "turns", turn_id, reason=reason)
    for each in source.rows("SELECT * FROM feedback WHERE turn_id = ? ORDER BY id", (row["id"],)):
        given = {**dict(each), "turn_id": turn_id}
        del given["id"]
        if target.redaction is not None and given["text"] is not None:
            given["text"] = target.redaction.text(given["text"])
        _insert(connection, "feedback", given)
    for each in verdict:
        _insert(connection, "verdicts", {**dict(each), "turn_id": turn_id})
    return state if reason is None else reason


def _copy_samples(
    source: Ledger,
    target: Ledger,
    connection: sqlite3.Connection,
    new: dict[str, bool],
    number: int,
    result: Copied,
    judge_again: bool,
) -> None:
    """Copy the samples of new turns in the order of their batches, those without a batch last."""
    segments: dict[int, int] = {}
    for row in source.rows(f"SELECT * FROM samples ORDER BY {ORDER}, id"):
        if row["turn_id"] not in new or (judge_again and row["episode"] is None):
            continue
        turn_id = turn_of_pass(row["turn_id"], number)
        held = json.loads(row["sample"])["metadata"].get("turns", [row["turn_id"]])
        if any(_is_redacted(connection, turn_of_pass(each, number)) for each in held):
            continue
        dropped = row["state"] == "dropped"
        values = {**dict(row), "turn_id": turn_id, "state": "ready", "rollout_id": None, "reason": None}
        if values["episode"] is not None:
            values |= _of_pass(values, number)
        del values["id"]
        sample_id = _insert(connection, "samples", values)
        segments[row["id"]] = sample_id
        if dropped:
            target.update_one(connection, "samples", sample_id, state="dropped", reason=row["reason"])
        result.samples[row["reason"] if dropped else "ready"] += 1
    for row in source.rows("SELECT id, segment FROM turns WHERE segment IS NOT NULL"):
        if row["id"] in new and row["segment"] in segments:
            target.update_one(connection, "turns", turn_of_pass(row["id"], number), segment=segments[row["segment"]])


def _is_redacted(connection: sqlite3.Connection, turn_id: str) -> bool:
    found = connection.execute("SELECT reason FROM turns WHERE id = ?", (turn_id,)).fetchone()
    return found is not None and found["reason"] == REDACTED


def _of_pass(values: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the columns of a sample of an episode that name it: each pass is a rollout of its own."""
    if number == 1:
        return {}
    name, sample = suffixed(values["episode"], number), json.loads(values["sample"])
    sample["metadata"] |= {EPISODE: name}
    return {"episode": name, "sample": json.dumps(sample)}


def _insert(connection: sqlite3.Connection, table: str, values: dict[str, Any]) -> int:
    marks = ", ".join("?" for _ in values)
    cursor = connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))
    return cursor.lastrowid or 0
