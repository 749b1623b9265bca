"""The ledger's tables and their version; opening a database brings it to `VERSION` or refuses it.

Guarantees: a database of a newer program is refused, never altered. Nothing is ever deleted: a step that a restored
checkpoint undid keeps its row with ``undone_at`` set.
"""

from __future__ import annotations

import sqlite3

from openclaw.ledger.exceptions import LedgerVersionError
from openclaw.ledger.states import (
    FIRST_SAMPLE_STATES,
    FIRST_TURN_STATES,
    VALID_SAMPLE_TRANSITIONS,
    VALID_TURN_TRANSITIONS,
    triggers_sql,
)

VERSION = 1

_TABLES = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    started_at REAL NOT NULL,
    ended_at REAL,               -- set when the session ends, cleared when it resumes
    closed_at REAL               -- set once, when a finished session has contributed
);
CREATE TABLE turns (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    session_id TEXT NOT NULL REFERENCES sessions(id),
    position INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('main', 'side')),
    created_at REAL NOT NULL,
    finished_at REAL NOT NULL,
    messages TEXT NOT NULL,
    tools TEXT NOT NULL,
    chat_template_kwargs TEXT NOT NULL,
    prompt_ids BLOB NOT NULL,
    response_ids BLOB NOT NULL,
    response_logprobs BLOB NOT NULL,
    weight_versions TEXT NOT NULL,
    finish_reason TEXT NOT NULL,
    response_message TEXT NOT NULL,
    temperature REAL NOT NULL,
    top_p REAL NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    next_state TEXT,
    next_state_at REAL,
    judge_attempts INTEGER NOT NULL DEFAULT 0,
    judge_error TEXT,
    not_before REAL NOT NULL DEFAULT 0
);
CREATE INDEX turns_by_state ON turns(state, number);
CREATE INDEX turns_by_session ON turns(session_id, number);
CREATE TABLE verdicts (
    turn_id TEXT PRIMARY KEY REFERENCES turns(id),
    verdict TEXT NOT NULL,
    teacher_log_probs BLOB,
    judged_at REAL NOT NULL
);
CREATE TABLE samples (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    turn_id TEXT NOT NULL REFERENCES turns(id),
    sample TEXT NOT NULL,
    tokens BLOB NOT NULL,
    rollout_log_probs BLOB,
    teacher_log_probs BLOB,
    state TEXT NOT NULL,
    reason TEXT,
    rollout_id INTEGER,
    created_at REAL NOT NULL
);
CREATE INDEX samples_by_state ON samples(state, id);
CREATE INDEX samples_by_turn ON samples(turn_id);
CREATE TABLE steps (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    rollout_id INTEGER NOT NULL,
    weight_version TEXT NOT NULL,
    trained_at REAL NOT NULL,
    live_at REAL NOT NULL,
    undone_at REAL
);
CREATE UNIQUE INDEX steps_by_rollout ON steps(rollout_id) WHERE undone_at IS NULL;
"""


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Bring the open database to `VERSION`; safe when several processes open a new file at once.

    Raises:
        LedgerVersionError: when the file was written by a newer program.
    """
    if connection.execute("PRAGMA user_version").fetchone()[0] == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise LedgerVersionError(
                f"{path} has ledger version {version}, this program writes {VERSION}: "
                "update the program, or name another file with OPENCLAW_LEDGER"
            )
        if version == 0:
            for statement in _TABLES.split(";"):
                if statement.strip():
                    connection.execute(statement)
            for statement in triggers_sql("turns", VALID_TURN_TRANSITIONS, FIRST_TURN_STATES):
                connection.execute(statement)
            for statement in triggers_sql("samples", VALID_SAMPLE_TRANSITIONS, FIRST_SAMPLE_STATES):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
