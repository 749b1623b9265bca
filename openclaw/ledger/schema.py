"""The ledger's schema: its state machines, its migrations, and how a file gets the newest version.

Guarantees: a released migration is never edited; a schema change is a new migration. A new file runs all migrations, so it
equals a migrated one. A file of a newer version is refused and never changed. A file of an older version is backed up
(``FILE.v1.backup``, named in the log) and migrated in one transaction, so a crash leaves the old file. If several processes
open a file at once, one of them migrates it. Triggers enforce the tables of states after the last migration, so no query
of any process can make an illegal transition.

Turn: waiting (no next state yet) -> pending (has one, waits for the judge) -> judged; judged -> pending when feedback
arrives before a step has used its samples; waiting -> ended when its session ends, ended -> pending when the session
resumes; excluded turns (side, aborted, evaluation) stay so. A turn of a log that holds text only is unscored until the
policy's engine has scored its reply, then pending; judged -> unscored when its scores are too old to train on; unscored ->
ended when it cannot be scored, with a reason.

Sample: ready -> leased (to a rollout id) -> trained (a checkpoint contains its step); leased or trained -> ready when a
checkpoint before that step is restored; ready or leased -> dropped with a reason, and back when the drop is undone by
a restored checkpoint or a quarantined batch is accepted; leased or trained -> dropped when a rollback takes the step back.

Lesson: see `openclaw.lessons.lesson`.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from groundwork.private_files import private
from openclaw.ledger.exceptions import LedgerVersionError
from openclaw.ledger.records import STALE, choice_of, loss_tokens
from openclaw.lessons.lesson import FIRST_LESSON_STATES, VALID_LESSON_TRANSITIONS
from openclaw.messages.fingerprint import conversation_digest
from openclaw.owners import metered_owner, owner_of, root

VALID_TURN_TRANSITIONS: Mapping[str, frozenset[str]] = {
    "waiting": frozenset({"pending", "ended"}),
    "ended": frozenset({"pending"}),
    "pending": frozenset({"judged"}),
    "judged": frozenset({"pending", "unscored"}),
    "unscored": frozenset({"pending", "ended"}),
    "excluded": frozenset(),
}
FIRST_TURN_STATES: frozenset[str] = frozenset({"waiting", "unscored", "excluded"})
VALID_SAMPLE_TRANSITIONS: Mapping[str, frozenset[str]] = {
    "ready": frozenset({"leased", "dropped"}),
    "leased": frozenset({"ready", "trained", "dropped"}),
    "trained": frozenset({"ready", "dropped"}),
    "dropped": frozenset({"ready"}),
}
FIRST_SAMPLE_STATES: frozenset[str] = frozenset({"ready"})


class Move(NamedTuple):
    """One way to move the samples of a batch: from which states, to which, and the columns that it clears."""

    sources: tuple[str, ...]
    target: str
    clears: tuple[str, ...] = ()


SAMPLE_MOVES: Mapping[str, Move] = {
    "lease": Move(("ready",), "leased"),
    "commit": Move(("leased",), "trained"),
    "release": Move(("leased",), "ready", ("rollout_id",)),
    "undo": Move(("leased", "trained", "dropped"), "ready", ("rollout_id", "reason")),
    "readmit": Move(("dropped",), "ready", ("rollout_id", "reason")),
    "discard": Move(("ready",), "dropped", ("rollout_id",)),
    "refuse": Move(("leased",), "dropped"),
    "unlearn": Move(("leased", "trained"), "dropped"),
}
"""How samples move for a step: the only way in which many of them change their state at once.

A claim leases. A checkpoint commits; a restored one undoes. A refused step drops its batch (``refuse``), a rollback what the
weights have not learned any more (``unlearn``). A person who accepts a refused batch readmits it, or releases it while it is
still leased. Samples that another method made, or that a later opinion replaces, are discarded.
"""


def triggers_sql(table: str, transitions: Mapping[str, frozenset[str]], first: frozenset[str]) -> list[str]:
    """Return the statements that (re)create the triggers for ``table.state``."""
    allowed = [
        f"(OLD.state = '{source}' AND NEW.state = '{target}')"
        for source, targets in transitions.items()
        for target in sorted(targets)
    ]
    starts = ", ".join(f"'{state}'" for state in sorted(first))
    return [
        f"DROP TRIGGER IF EXISTS {table}_first_state",
        f"DROP TRIGGER IF EXISTS {table}_next_state",
        f"CREATE TRIGGER {table}_first_state BEFORE INSERT ON {table} WHEN NEW.state NOT IN ({starts}) "
        f"BEGIN SELECT RAISE(ABORT, 'illegal first state in {table}'); END",
        f"CREATE TRIGGER {table}_next_state BEFORE UPDATE OF state ON {table} WHEN NOT ({' OR '.join(allowed)}) "
        f"BEGIN SELECT RAISE(ABORT, 'illegal transition in {table}'); END",
    ]


def deletion_triggers_sql() -> list[str]:
    """Return the statements that (re)create the trigger that requires a tombstone before a sample is deleted."""
    return [
        "DROP TRIGGER IF EXISTS samples_deleted",
        "CREATE TRIGGER samples_deleted BEFORE DELETE ON samples"
        " WHEN NOT EXISTS (SELECT 1 FROM forgotten_samples WHERE id = OLD.id)"
        " BEGIN SELECT RAISE(ABORT, 'illegal deletion in samples'); END",
    ]


def log_triggers_sql() -> list[str]:
    """Return the statements that (re)create the trigger that numbers verdicts."""
    return [
        "DROP TRIGGER IF EXISTS verdicts_logged",
        "CREATE TRIGGER verdicts_logged AFTER INSERT ON verdicts"
        " BEGIN INSERT INTO verdict_log (turn_id, judged_at) VALUES (NEW.turn_id, NEW.judged_at); END",
    ]


NO_REPLY_BEFORE = """instr(messages, '"role": "assistant"') = 0"""
"""SQL: whether a turn's request has no earlier reply. `json.dumps` writes messages so; inside a text its quotes are escaped."""
_FIRST_SCORES = (
    "SELECT number, session_id, json_extract(weight_versions, '$[0].version') AS version, json_extract(verdict, '$.score')"
    " AS score FROM verdicts JOIN turns ON turns.id = turn_id WHERE kind = 'main' AND copied = 0 AND scored = 0"
    f" AND {NO_REPLY_BEFORE} AND version IS NOT NULL AND score IS NOT NULL"
)


def first_score_triggers_sql() -> list[str]:
    """Return the statements that (re)create the triggers of ``first_scores``. A turn has a verdict only while it is judged."""
    forget = "DELETE FROM first_scores WHERE number = (SELECT number FROM turns WHERE id = OLD.turn_id);"
    enter = f"INSERT INTO first_scores {_FIRST_SCORES} AND turn_id = NEW.turn_id;"
    triggers = {
        "verdicts_first": f"AFTER INSERT ON verdicts BEGIN {enter} END",
        "verdicts_again": f"AFTER UPDATE OF verdict ON verdicts BEGIN {forget} {enter} END",
        "verdicts_deleted": f"AFTER DELETE ON verdicts BEGIN {forget} END",
    }
    dropped = [f"DROP TRIGGER IF EXISTS {name}" for name in triggers]
    return dropped + [f"CREATE TRIGGER {name} {body}" for name, body in triggers.items()]


_METERED = f"({{0}}.state = 'trained' OR ({{0}}.state = 'dropped' AND {{0}}.reason = '{STALE}'))"
"""SQL: whether the tokens of a row of samples count as trained or as stale (`openclaw.ledger.usage`)."""
_METERED_OWNER = (
    "CASE WHEN substr(session_id, 1, 1) <> '@' OR instr(session_id, ':') = 0 THEN '' ELSE substr(session_id, 2, instr("
    "replace(substr(session_id, 1, instr(session_id, ':')), '/episode-', ':'), ':') - 2) END"
)
"""SQL: for whom a session's tokens count, as `openclaw.owners.metered_owner` of its owner."""


def meter_triggers_sql() -> list[str]:
    """Return the statements that (re)create the trigger which counts samples in ``usage`` as trained or stale, and back."""
    tokens = "CASE {0}.state WHEN '{1}' THEN COALESCE({0}.loss_tokens, 0) ELSE 0 END"
    trained, stale = (tuple(tokens.format(row, state) for row in ("OLD", "NEW")) for state in ("trained", "dropped"))
    return [
        "DROP TRIGGER IF EXISTS samples_metered",
        "CREATE TRIGGER samples_metered AFTER UPDATE OF state ON samples"
        f" WHEN OLD.metered_on IS NOT NULL OR {_METERED.format('NEW')} BEGIN"
        f" UPDATE usage SET trained = trained - {trained[0]}, stale = stale - {stale[0]} WHERE day = OLD.metered_on"
        f" AND owner = (SELECT {_METERED_OWNER} FROM turns WHERE id = OLD.turn_id);"
        f" INSERT INTO usage (day, owner, trained, stale) SELECT date('now'), {_METERED_OWNER}, {trained[1]}, {stale[1]}"
        f" FROM turns WHERE id = NEW.turn_id AND {_METERED.format('NEW')}"
        " ON CONFLICT (day, owner) DO UPDATE SET trained = trained + excluded.trained, stale = stale + excluded.stale;"
        f" UPDATE samples SET metered_on = CASE WHEN {_METERED.format('NEW')} THEN date('now') END WHERE id = NEW.id; END",
    ]


_VERSION_1 = """
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
_VERSION_2 = """
ALTER TABLE turns ADD COLUMN conversation BLOB;  -- digest of the messages and the reply, see openclaw.messages.fingerprint
ALTER TABLE turns ADD COLUMN signal TEXT         -- how the next state came; NULL is next_state
    CHECK (signal IN ('next_state', 'regenerated', 'feedback'));
CREATE INDEX turns_by_conversation ON turns(conversation, number) WHERE conversation IS NOT NULL;
CREATE TABLE feedback (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    turn_id TEXT NOT NULL REFERENCES turns(id),
    created_at REAL NOT NULL,
    thumbs TEXT CHECK (thumbs IN ('up', 'down')),
    score REAL,
    text TEXT,
    source TEXT,
    applied INTEGER NOT NULL DEFAULT 0 CHECK (applied IN (0, 1))  -- 1 when it became the next state of its turn
);
CREATE INDEX feedback_by_turn ON feedback(turn_id);
CREATE TABLE forgotten_samples (                 -- what is left of a sample: that a step used one more
    id INTEGER PRIMARY KEY,
    rollout_id INTEGER,                          -- NULL when no step used it
    forgotten_at REAL NOT NULL
);
CREATE TABLE forgotten_sessions (
    session BLOB PRIMARY KEY,                    -- digest of the session id
    forgotten_at REAL NOT NULL
);
"""
_VERSION_3 = """
CREATE INDEX sessions_open ON sessions(id) WHERE ended_at IS NULL;
"""
_VERSION_4 = """
CREATE INDEX turns_by_session_state ON turns(session_id, state, number);
"""
_VERSION_5 = """
ALTER TABLE samples ADD COLUMN teacher_topk_log_probs BLOB;  -- K float64 per response token
ALTER TABLE samples ADD COLUMN teacher_topk_indices BLOB;    -- K int32 per response token
"""
_VERSION_6 = """
-- The triggers, which follow from the states, also let a judged turn become pending again.
ALTER TABLE turns ADD COLUMN malformed_calls INTEGER NOT NULL DEFAULT 0;  -- tool calls of the reply that nobody can read
"""
_VERSION_7 = """
ALTER TABLE samples ADD COLUMN baseline_role TEXT;    -- whose reaction gave the reward, see openclaw.credit.baseline
ALTER TABLE samples ADD COLUMN baseline_reward REAL;  -- the reward of a whole reply, before its share of a request
CREATE INDEX samples_by_role ON samples(baseline_role, id, baseline_reward) WHERE baseline_role IS NOT NULL;
"""
_VERSION_8 = """
ALTER TABLE turns ADD COLUMN topk_log_probs BLOB;            -- K float64 per response token: the policy's own top K
ALTER TABLE turns ADD COLUMN topk_ids BLOB;                  -- K int32 per response token
ALTER TABLE samples ADD COLUMN rollout_topk_log_probs BLOB;  -- K float64 per response token
"""
_VERSION_9 = """
CREATE TABLE episodes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,               -- who created it, see openclaw.owners
    key_name TEXT NOT NULL,            -- name of the key that created it
    key_digest BLOB,                   -- SHA-256 of the episode's own key; NULL once it has ended
    task TEXT NOT NULL,
    group_name TEXT,
    group_size INTEGER,
    metadata TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'closed', 'settled', 'deleted')),
    status TEXT,                       -- how it ended
    reward REAL,
    closed_at REAL,
    settled_at REAL,
    reason TEXT,                       -- why it gave no samples
    segments INTEGER NOT NULL DEFAULT 0,
    merged_turns INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX episodes_unsettled ON episodes(state, number) WHERE state IN ('open', 'closed');
CREATE INDEX episodes_by_owner ON episodes(owner, settled_at);
ALTER TABLE samples ADD COLUMN episode TEXT;   -- all samples of an episode change their state together
CREATE INDEX samples_by_episode ON samples(episode) WHERE episode IS NOT NULL;
ALTER TABLE turns ADD COLUMN segment INTEGER;  -- the sample that holds the turn together with others of its episode
CREATE INDEX turns_by_segment ON turns(segment) WHERE segment IS NOT NULL;
"""
_VERSION_10 = """
ALTER TABLE episodes ADD COLUMN scores TEXT;  -- the driver's scores of turns, by turn id
"""
_VERSION_11 = """
-- The triggers, which follow from the states, also let a trained sample be dropped, because a rollback takes its step back.
CREATE TABLE decisions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    rollout_id INTEGER NOT NULL,        -- the batch; of a rollback or an acceptance the last one before it
    kind TEXT NOT NULL CHECK (kind IN ('start', 'step', 'refused', 'rollback', 'accept')),
    weight_version TEXT NOT NULL,       -- the weights that serve if the batch is accepted
    why TEXT NOT NULL,
    by_margin INTEGER NOT NULL DEFAULT 0 CHECK (by_margin IN (0, 1)),  -- refused by the users' opinions alone
    metrics TEXT NOT NULL,
    first_turn INTEGER,                 -- number of the batch's middle turn; of an acceptance: older probes are retired
    last_turn INTEGER,                  -- of an acceptance: newest turn then
    decided_at REAL NOT NULL,
    undone_at REAL                      -- when a checkpoint from before the batch was restored, or it was decided again
);
CREATE UNIQUE INDEX decisions_by_rollout ON decisions(rollout_id) WHERE undone_at IS NULL AND kind IN ('step', 'refused');
CREATE TABLE probe_scores (             -- mean log-probability per token of a probe's reply under some weights
    decision INTEGER NOT NULL REFERENCES decisions(number),
    turn_id TEXT NOT NULL REFERENCES turns(id),
    score REAL NOT NULL,
    PRIMARY KEY (decision, turn_id)
);
CREATE INDEX probe_scores_by_turn ON probe_scores(turn_id);
CREATE INDEX samples_by_rollout ON samples(rollout_id) WHERE rollout_id IS NOT NULL;
CREATE INDEX turns_for_probes ON turns(number) WHERE reason = 'probe';
"""
_VERSION_12 = """
-- The triggers, which follow from the states, let a turn of a log wait for its scores.
ALTER TABLE turns ADD COLUMN scored INTEGER NOT NULL DEFAULT 0;  -- 1: ids rendered from text, log-probabilities scored
CREATE TABLE logs (                  -- turns that logs brought
    turn_id TEXT PRIMARY KEY REFERENCES turns(id),
    verdict TEXT                     -- the verdict that the log had, which is kept; NULL: judged here
);
"""
_VERSION_16 = """
ALTER TABLE turns ADD COLUMN copied INTEGER NOT NULL DEFAULT 0;  -- 1: from another run's ledger, whose weights replied
ALTER TABLE sessions ADD COLUMN reopened_at REAL;  -- when a turn of a closed log was scored again; NULL once it is closed
"""
_VERSION_17 = """
CREATE TABLE pictures (
    sha256 TEXT PRIMARY KEY,       -- of the file
    png BLOB NOT NULL              -- at the model's size
);
CREATE TABLE turn_pictures (       -- the pictures of each turn's prompt
    turn_id TEXT NOT NULL REFERENCES turns(id),
    start INTEGER NOT NULL,        -- position of the first placeholder in the prompt's ids
    tokens INTEGER NOT NULL,       -- number of placeholders
    sha256 TEXT NOT NULL REFERENCES pictures(sha256),
    PRIMARY KEY (turn_id, start)
);
CREATE INDEX turn_pictures_by_file ON turn_pictures(sha256);
"""
_VERSION_19 = """
CREATE TABLE secrets (           -- made here, never shown and never exported
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
);
ALTER TABLE samples ADD COLUMN baseline_owner TEXT;  -- who gave the reward, see openclaw.owners
ALTER TABLE samples ADD COLUMN made_by TEXT;         -- the method that made it, see openclaw.method; NULL if unknown
DROP INDEX samples_by_role;
CREATE INDEX samples_by_role ON samples(baseline_role, id, baseline_reward, baseline_owner) WHERE baseline_role IS NOT NULL;
CREATE INDEX samples_by_owner ON samples(baseline_owner, baseline_role, id, baseline_reward) WHERE baseline_role IS NOT NULL;
"""
_VERSION_20 = """
CREATE TABLE verdict_log (       -- the order of verdicts, see openclaw.ledger.record_files; a replaced one keeps its number
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    turn_id TEXT NOT NULL REFERENCES turns(id),
    judged_at REAL NOT NULL
);
CREATE INDEX verdict_log_by_turn ON verdict_log(turn_id);
INSERT INTO verdict_log (turn_id, judged_at) SELECT turn_id, judged_at FROM verdicts ORDER BY judged_at;
"""
_VERSION_21 = """
CREATE TABLE people (            -- who has chosen something, see openclaw.owners.root
    person TEXT PRIMARY KEY,
    lessons TEXT NOT NULL CHECK (lessons IN ('auto', 'confirm', 'off'))
);
CREATE TABLE lessons (           -- see openclaw.lessons
    id TEXT PRIMARY KEY,
    person TEXT NOT NULL,
    text TEXT NOT NULL,
    origin TEXT NOT NULL CHECK (origin IN ('judge', 'owner')),
    state TEXT NOT NULL,
    reason TEXT,
    pinned INTEGER NOT NULL DEFAULT 0 CHECK (pinned IN (0, 1)),
    touched INTEGER NOT NULL DEFAULT 0 CHECK (touched IN (0, 1)),
    replaces TEXT,               -- the lesson that rests because of this one
    created_at REAL NOT NULL,
    changed_at REAL NOT NULL,
    served_at REAL
);
CREATE INDEX lessons_by_person ON lessons(person, state);
CREATE TABLE lesson_turns (      -- turns whose complaint gave a lesson ('said'), and whose prompt had it ('read')
    lesson TEXT NOT NULL REFERENCES lessons(id) ON DELETE CASCADE,
    turn_id TEXT NOT NULL REFERENCES turns(id),
    role TEXT NOT NULL CHECK (role IN ('said', 'read')),
    PRIMARY KEY (lesson, turn_id, role)
);
CREATE INDEX lesson_turns_by_turn ON lesson_turns(turn_id);
-- The prompt without lessons is prompt_ids[:lesson_start] + plain_middle + prompt_ids[lesson_end:]; NULL: it had none.
ALTER TABLE turns ADD COLUMN lesson_start INTEGER;
ALTER TABLE turns ADD COLUMN lesson_end INTEGER;
ALTER TABLE turns ADD COLUMN plain_middle BLOB;
"""
_VERSION_22 = """
ALTER TABLE samples ADD COLUMN person TEXT;  -- whose session it is of, see openclaw.owners.root
ALTER TABLE samples ADD COLUMN origin TEXT NOT NULL DEFAULT 'live' CHECK (origin IN ('live', 'practice'));
CREATE INDEX samples_by_person ON samples(person, state, id);
"""
_VERSION_23 = """
CREATE TABLE lesson_measures (   -- what the weights do without a lesson, see openclaw.lessons.lesson.Measure
    lesson TEXT NOT NULL REFERENCES lessons(id) ON DELETE CASCADE,
    weight_version TEXT NOT NULL,
    at REAL NOT NULL,
    scorer TEXT NOT NULL CHECK (scorer IN ('judge', 'base')),
    prompts INTEGER NOT NULL,
    practised INTEGER NOT NULL,
    plain REAL NOT NULL,
    taught REAL NOT NULL,
    error REAL NOT NULL,
    taught_error REAL NOT NULL,
    PRIMARY KEY (lesson, weight_version)
);
CREATE TABLE turns_of_lessons (  -- as before; and the judged turns of its person while the lesson rested as learned ('without')
    lesson TEXT NOT NULL REFERENCES lessons(id) ON DELETE CASCADE,
    turn_id TEXT NOT NULL REFERENCES turns(id),
    role TEXT NOT NULL CHECK (role IN ('said', 'read', 'without')),
    PRIMARY KEY (lesson, turn_id, role)
);
INSERT INTO turns_of_lessons SELECT * FROM lesson_turns;
DROP TABLE lesson_turns;
ALTER TABLE turns_of_lessons RENAME TO lesson_turns;
CREATE INDEX lesson_turns_by_turn ON lesson_turns(turn_id);
ALTER TABLE lessons ADD COLUMN rested_at REAL;  -- since when it rests as learned
"""
_VERSION_24 = """
ALTER TABLE feedback ADD COLUMN action TEXT CHECK (action IN ('edited', 'regenerated', 'copied'));
ALTER TABLE feedback ADD COLUMN edit TEXT;       -- the reply as the person edited it
"""
_VERSION_25 = """
CREATE TABLE practice_rounds (   -- see openclaw.ledger.practice.Round
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    person TEXT NOT NULL,
    series TEXT NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('drawn', 'reached', 'stuck', 'failed')),
    kl REAL,
    tokens INTEGER NOT NULL,
    at REAL NOT NULL
);
CREATE INDEX practice_rounds_by_person ON practice_rounds(person, series, id);
CREATE TABLE heldout_prompts (   -- turns whose prompts measure practice and are never practised
    turn_id TEXT PRIMARY KEY REFERENCES turns(id),
    person TEXT NOT NULL
);
"""
_VERSION_26 = """
ALTER TABLE decisions ADD COLUMN certificate TEXT;  -- JSON, see openclaw.gate.certificate
"""
_VERSION_27 = """
ALTER TABLE samples ADD COLUMN practice_round INTEGER;  -- the round of practice that drew it
CREATE INDEX samples_by_practice_round ON samples(practice_round) WHERE practice_round IS NOT NULL;
ALTER TABLE practice_rounds ADD COLUMN closed INTEGER NOT NULL DEFAULT 0;  -- 1: what its teacher read has changed since
"""
_VERSION_28 = """
ALTER TABLE steps ADD COLUMN person TEXT;      -- whose adapter it trained, see openclaw.owners.root; NULL: everybody's weights
ALTER TABLE decisions ADD COLUMN person TEXT;  -- whose adapter it is about; NULL: everybody's weights
"""
_VERSION_29 = """
ALTER TABLE turns ADD COLUMN adapter_fallback TEXT;  -- the person's newer adapter that could not be loaded
"""
_VERSION_30 = """
CREATE TABLE responses (         -- what clients may ask for again, see openclaw.ledger.responses
    turn_id TEXT PRIMARY KEY REFERENCES turns(id),
    previous TEXT,               -- turn of the response that it continues
    items TEXT NOT NULL,         -- those that its request added to the conversation
    response TEXT NOT NULL       -- as it was sent
);
"""

OWNERS_PERSON = (
    "CASE WHEN substr(session_id, 1, 1) <> '@' OR instr(session_id, ':') = 0 THEN '' ELSE substr(session_id, 2,"
    " instr(replace(substr(session_id, 1, instr(session_id, ':')), '/', ':'), ':') - 2) END"
)
"""SQL: whose a session is, as `openclaw.owners.root` of its owner. Migration 32 has an index of it, so it never changes."""
_VERSION_32 = f"""
CREATE INDEX turns_by_person ON turns({OWNERS_PERSON}, number, state);
"""
_VERSION_33 = """
CREATE INDEX steps_by_person ON steps(person, number);
CREATE INDEX decisions_by_person ON decisions(person, number);
"""
_VERSION_34 = """
UPDATE decisions SET why = substr(why, 1, instr(why, ' away from what ') + 15) || 'one of the owners'
 || substr(why, instr(why, ' liked: margin ')) WHERE instr(why, ' away from what owner ') AND instr(why, ' liked: margin ');
"""

_VERSION_35 = """
CREATE TABLE first_scores (      -- verdicts of first replies that the run itself gave; triggers keep it true
    number INTEGER PRIMARY KEY,  -- of the turn
    session_id TEXT NOT NULL,
    version TEXT NOT NULL,       -- of the weights that sampled the reply's first token
    score INTEGER NOT NULL
);
ALTER TABLE samples ADD COLUMN oldest_version INTEGER;  -- the first of the versions that sampled it
-- They have every column that is asked for, so that no message and no sample is read.
CREATE INDEX samples_ready ON samples(person, created_at, oldest_version, state) WHERE state = 'ready';
CREATE INDEX turns_pending ON turns(session_id, next_state_at, state) WHERE state = 'pending';
CREATE INDEX turns_scored ON turns(session_id, scored) WHERE scored = 1;
"""

USAGE_TABLE = """
CREATE TABLE usage (             -- tokens by day (UTC) and owner, see openclaw.ledger.usage
    day TEXT NOT NULL,
    owner TEXT NOT NULL,
    prefill INTEGER NOT NULL DEFAULT 0,
    cached INTEGER NOT NULL DEFAULT 0,
    sampled INTEGER NOT NULL DEFAULT 0,
    judged INTEGER NOT NULL DEFAULT 0,
    trained INTEGER NOT NULL DEFAULT 0,   -- in a ledger, triggers keep it and the next one true
    stale INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (day, owner)
);
"""
"""SQL: of every file that has meters."""

_VERSION_36 = f"""{USAGE_TABLE}
ALTER TABLE samples ADD COLUMN loss_tokens INTEGER;
ALTER TABLE samples ADD COLUMN metered_on TEXT;  -- the day that has its tokens as trained or stale
"""


def fill_baseline_owners(connection: sqlite3.Connection) -> None:
    """Set who gave the rewards that were recorded before their column existed."""
    rows = connection.execute(
        "SELECT samples.id, session_id FROM samples JOIN turns ON turns.id = turn_id WHERE baseline_role IS NOT NULL"
    ).fetchall()
    owners = [(root(owner_of(session_id)), sample_id) for sample_id, session_id in rows]
    connection.executemany("UPDATE samples SET baseline_owner = ? WHERE id = ?", owners)


def fill_people(connection: sqlite3.Connection) -> None:
    """Set the person of the samples that have none, because they were recorded before its column existed."""
    rows = connection.execute(
        "SELECT samples.id, session_id FROM samples JOIN turns ON turns.id = turn_id WHERE person IS NULL"
    ).fetchall()
    people = [(root(owner_of(session_id)), sample_id) for sample_id, session_id in rows]
    connection.executemany("UPDATE samples SET person = ? WHERE id = ?", people)


def fill_what_is_counted(connection: sqlite3.Connection) -> None:
    """Set what the window counts of verdicts and samples that were recorded before version 35."""
    connection.execute(f"INSERT OR REPLACE INTO first_scores {_FIRST_SCORES}")
    connection.execute(
        "UPDATE samples SET oldest_version = json_extract(sample, '$.weight_versions[0]') WHERE oldest_version IS NULL"
    )


def fill_loss_tokens(connection: sqlite3.Connection) -> None:
    """Set the tokens with loss of the samples that were recorded before their column existed."""
    rows = connection.execute("SELECT id, sample FROM samples WHERE loss_tokens IS NULL")
    counts = [(loss_tokens(json.loads(sample)), number) for number, sample in rows]
    connection.executemany("UPDATE samples SET loss_tokens = ? WHERE id = ?", counts)


def fill_usage(connection: sqlite3.Connection) -> None:
    """Count what was recorded before the meters; the ledger does not tell of caches and judges.

    A request's prompt counts with its first choice. A sample counts as trained on the day of its step, as stale on the day on
    which it was made.
    """
    fill_loss_tokens(connection)
    counts: Counter[tuple[str, str, str]] = Counter()
    for turn_id, session_id, day, prompt, reply in connection.execute(
        "SELECT id, session_id, date(finished_at, 'unixepoch'), length(prompt_ids) / 4, length(response_ids) / 4 FROM turns"
        " WHERE copied = 0 AND scored = 0"
    ):
        owner = metered_owner(owner_of(session_id))
        counts[day, owner, "prefill"] += 0 if choice_of(turn_id)[1] else prompt
        counts[day, owner, "sampled"] += reply
    days: list[tuple[str, int]] = []
    for number, session_id, state, day, tokens in connection.execute(
        "SELECT samples.id, session_id, samples.state, date(CASE samples.state WHEN 'trained' THEN COALESCE((SELECT MAX(trained_at)"
        " FROM steps WHERE steps.rollout_id = samples.rollout_id), samples.created_at) ELSE samples.created_at END, 'unixepoch'),"
        f" loss_tokens FROM samples JOIN turns ON turns.id = turn_id WHERE {_METERED.format('samples')}"
        " AND (samples.state <> 'dropped' OR turns.copied = 0)"  # what another run dropped
    ):
        meter = "trained" if state == "trained" else "stale"
        counts[day, metered_owner(owner_of(session_id)), meter] += tokens
        days.append((day, number))
    connection.executemany("UPDATE samples SET metered_on = ? WHERE id = ?", days)
    for (day, owner, meter), tokens in counts.items():
        connection.execute(
            f"INSERT INTO usage (day, owner, {meter}) VALUES (?, ?, ?)"
            f" ON CONFLICT (day, owner) DO UPDATE SET {meter} = excluded.{meter}",
            (day, owner, tokens),
        )


def fill_conversations(connection: sqlite3.Connection) -> None:
    """Set the digest of main turns that were recorded before its column existed."""
    last = 0
    while True:
        row = connection.execute(
            "SELECT number, messages, response_message FROM turns WHERE number > ? AND kind = 'main'"
            " ORDER BY number LIMIT 1",
            (last,),
        ).fetchone()
        if row is None:
            return
        last, messages, reply = row
        digest = conversation_digest(json.loads(messages), json.loads(reply))
        connection.execute("UPDATE turns SET conversation = ? WHERE number = ?", (digest, last))


def renew_conversations(connection: sqlite3.Connection) -> None:
    """Set the digest of every turn that has one to what `openclaw.messages.fingerprint` gives now.

    A redacted turn keeps its digest, because the ledger does not hold the words that it is of.
    """
    last = 0
    while True:
        row = connection.execute(
            "SELECT number, session_id, messages, response_message, conversation FROM turns"
            " WHERE number > ? AND conversation IS NOT NULL AND COALESCE(reason, '') <> 'redacted'"
            " ORDER BY number LIMIT 1",
            (last,),
        ).fetchone()
        if row is None:
            return
        last, session_id, messages, reply, before = row
        digest = conversation_digest(json.loads(messages), json.loads(reply), owner_of(session_id))
        if digest != before:
            connection.execute("UPDATE turns SET conversation = ? WHERE number = ?", (digest, last))


@dataclass(frozen=True)
class Migration:
    """One migration.

    Attributes:
        version: the file's version after it.
        summary: what it adds.
        statements: SQL.
        fill: fills the new columns, or None.
    """

    version: int
    summary: str
    statements: str
    fill: Callable[[sqlite3.Connection], None] | None = None


MIGRATIONS: tuple[Migration, ...] = (
    Migration(1, "sessions, turns, verdicts, samples, steps", _VERSION_1),
    Migration(2, "conversation digests, signals, feedback, what was forgotten", _VERSION_2, fill_conversations),
    Migration(3, "an index of the sessions that have not ended", _VERSION_3),
    Migration(4, "an index of the turns of a session by state", _VERSION_4),
    Migration(5, "the teacher's top K with a sample", _VERSION_5),
    Migration(
        6, "unreadable tool calls of a turn; a judged turn is judged again when feedback arrives in time", _VERSION_6
    ),
    Migration(7, "the earlier rewards that a reward is compared with", _VERSION_7),
    Migration(8, "the policy's own top K at sampling, with a turn and a sample", _VERSION_8),
    Migration(9, "episodes of agents, and their samples of several turns", _VERSION_9),
    Migration(10, "scores of an episode's turns", _VERSION_10),
    Migration(11, "what the gate decided about each version of the weights", _VERSION_11),
    Migration(12, "turns of logs, which wait for scores and may keep their verdicts", _VERSION_12),
    Migration(16, "marks of turns that come from another run, and of sessions that close again", _VERSION_16),
    Migration(17, "the pictures that turns saw", _VERSION_17),
    Migration(18, "conversation digests that ignore thoughts and white space", "", renew_conversations),
    Migration(
        19,
        "whose rewards a reward is compared with, which method made a sample, and secrets",
        _VERSION_19,
        fill_baseline_owners,
    ),
    Migration(20, "the order of verdicts", _VERSION_20),
    Migration(21, "people's lessons, and the prompts of turns without them", _VERSION_21),
    Migration(22, "whose a sample is, and whether it is of a conversation or of practice", _VERSION_22, fill_people),
    Migration(23, "how well the weights satisfy lessons", _VERSION_23),
    Migration(24, "what people did with replies", _VERSION_24),
    Migration(25, "rounds of practice, and the prompts that measure them", _VERSION_25),
    Migration(26, "certificates of updates", _VERSION_26),
    Migration(27, "the round of a practised sample, and whether it may still be trained", _VERSION_27),
    Migration(28, "whose adapter a step trained and a decision is about", _VERSION_28),
    Migration(29, "replies by an older adapter of the person", _VERSION_29),
    Migration(30, "responses that clients may ask for again", _VERSION_30),
    Migration(31, "conversation digests that take 5.0 and 5 for one number", "", renew_conversations),
    Migration(32, "an index of the turns of a person", _VERSION_32),
    Migration(33, "indexes of a person's steps and decisions", _VERSION_33),
    Migration(34, "refusals that name nobody", _VERSION_34),
    Migration(35, "scores of first replies, and indexes of what waits", _VERSION_35, fill_what_is_counted),
    Migration(36, "tokens by owner and day", _VERSION_36, fill_usage),
)
VERSION = MIGRATIONS[-1].version


logger = logging.getLogger(__name__)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Migrate the open database to `VERSION`; safe for several processes at once.

    Raises:
        LedgerVersionError: if a newer version wrote the file.
    """
    if _version(connection) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)
        if version > VERSION:
            raise LedgerVersionError(
                f"{path} has ledger version {version}, but this program supports {VERSION}: "
                "update the program, or name another file with OPENCLAW_LEDGER"
            )
        if 0 < version < VERSION:
            logger.info("%s has ledger version %d; backed up to %s", path, version, back_up(path, version))
        for migration in [item for item in MIGRATIONS if item.version > version]:
            for statement in statements(migration.statements):
                connection.execute(statement)
            if migration.fill is not None:
                migration.fill(connection)
            if version:  # a new file is not news
                logger.info("%s: ledger version %d, %s", path, migration.version, migration.summary)
        if version < VERSION:
            create_triggers(connection)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def create_triggers(connection: sqlite3.Connection) -> None:
    """Replace the triggers: those that enforce the tables of states, number verdicts, note first scores and meter samples."""
    for statement in [
        *triggers_sql("turns", VALID_TURN_TRANSITIONS, FIRST_TURN_STATES),
        *triggers_sql("samples", VALID_SAMPLE_TRANSITIONS, FIRST_SAMPLE_STATES),
        *triggers_sql("lessons", VALID_LESSON_TRANSITIONS, FIRST_LESSON_STATES),
        *deletion_triggers_sql(),
        *log_triggers_sql(),
        *first_score_triggers_sql(),
        *meter_triggers_sql(),
    ]:
        connection.execute(statement)


def drop_triggers(connection: sqlite3.Connection) -> None:
    """Remove all triggers, to copy rows in any state; call `create_triggers` afterwards."""
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")


def backup_path(path: Path, version: int) -> Path:
    """Return the path of the backup of a file of ``version``."""
    return path.with_name(f"{path.name}.v{version}.backup")


def back_up(path: Path, version: int) -> Path:
    """Copy a ledger's committed contents to `backup_path` and return it; the caller holds the write lock."""
    target = backup_path(path, version)
    unfinished = target.with_name(f"{target.name}.part")
    unfinished.unlink(missing_ok=True)
    open(unfinished, "wb", opener=private).close()  # SQLite fills an empty file
    with closing(sqlite3.connect(path, isolation_level=None)) as source:
        source.execute("VACUUM INTO ?", (str(unfinished),))
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    unfinished.replace(target)
    return target


def statements(sql: str) -> Iterator[str]:
    """Yield the statements of ``sql`` one by one."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _version(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]
