"""Sessions: which turns a conversation has, when it is idle, its end, and its deletion with every byte.

Guarantees: a lookup returns enough to continue a session that is no longer in memory. One transaction deletes a session's
turns, verdicts, samples (trained or not), feedback, pictures that no other session saw, scores as probes, lessons that come from
it alone (`openclaw.ledger.lessons`), and those of its further passes in a run on logs (`openclaw.offline`). If the session belongs to an episode, all samples of the episode go,
because each may hold turns of several sessions. What remains is a digest of its id with the time, and a tombstone per sample
(``forgotten_samples``) with the step that used it. A batch that already has such a sample finishes its step; a crash does
not bring the sample back. A reply that is running when its session is deleted is not recorded (`Turns.record`).

`Sessions.forget_person` deletes all of a person in one transaction: every session, lesson, episode, round of practice and
decision of theirs. Of a step of their adapter, and of the tokens they took, only the numbers remain.

`Sessions.erase` then removes the bytes from disk, and the lines of `openclaw.ledger.record_files`: it overwrites deleted rows (``secure_delete``), empties the write-ahead
log and deletes the backups of migrations. It does not reach other copies, or checkpoints that learned from the session.

A deletion overwrites what it deletes, and SQLite first writes the overwritten pages to its log, so it needs about as much
space as the session has. The file ``LEDGER.reserve`` keeps that space for a full disk. The reserve never takes the last free
space of a disk, and keeping or releasing it never fails.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import astuple, dataclass
from pathlib import Path

from groundwork.chat_messages import Message
from groundwork.private_files import private
from openclaw.ledger.database import Database
from openclaw.ledger.episodes import FORGOTTEN
from openclaw.ledger.exceptions import (
    LedgerFullError,
    LedgerUnavailableError,
    UnknownRecordError,
)
from openclaw.ledger.feedback import settle_actions
from openclaw.ledger.lessons import Lessons
from openclaw.ledger.practice import forget_prompts
from openclaw.ledger.record_files import erase_lines
from openclaw.ledger.records import (
    PASS,
    Signal,
    TurnKind,
    TurnState,
    is_of_pass,
)
from openclaw.ledger.turns import ONLY_WEAK, Turns, forget_pictures, session_digest
from openclaw.ledger.usage import forget_usage
from openclaw.owners import episode_of, owner_of, root

logger = logging.getLogger(__name__)

NO_NEXT_STATE = "no_next_state"
NOBODY = "/"
"""Whose adapter a step trained whose person was forgotten; no person has this name."""
_LOOK_BACK = 1000
_COLUMNS = (
    f"id, session_id, kind, CASE WHEN {ONLY_WEAK} THEN 'ended' ELSE state END AS state, signal, conversation,"
    " response_message, next_state,"
    " json_extract(messages, '$[0]') AS first_message"
)
ERASE_SECONDS = 2.0
"""How long `Sessions.erase` waits for other connections."""
ERASE_PAUSE_SECONDS = 0.05
RESERVE_BYTES = 16 * 1024 * 1024
MIN_FREE = 4
"""The disk must have this many times the reserve before the ledger takes it."""


@dataclass(frozen=True)
class TurnNode:
    """A turn without its tokens; ``first_message`` is its request's first message."""

    id: str
    session_id: str
    kind: TurnKind
    state: TurnState
    signal: Signal | None
    conversation: bytes
    response_message: Message
    next_state: list[Message] | None
    first_message: Message | None


@dataclass(frozen=True)
class Forgotten:
    """Counts of deleted ``turns``, ``samples``, and samples that a step had used (``trained``)."""

    turns: int
    samples: int
    trained: int


class Sessions:
    """Conversations of the ledger."""

    def __init__(self, database: Database, turns: Turns, lessons: Lessons) -> None:
        self._database = database
        self._turns = turns
        self._lessons = lessons

    def end(self, session_id: str, at: float) -> None:
        """End a session; its waiting turns are not trained unless the session resumes, or their reader did something with the reply."""
        with self._database.transaction() as connection:
            connection.execute("UPDATE sessions SET ended_at = ? WHERE id = ?", (at, session_id))
            connection.execute(
                "UPDATE turns SET state = 'ended', reason = COALESCE(reason, ?) WHERE session_id = ? AND state = 'waiting'",
                (NO_NEXT_STATE, session_id),
            )
            settle_actions(connection, self._turns, session_id, at)

    def nodes(self, session_id: str, limit: int) -> tuple[int, list[TurnNode]]:
        """Return a session's number of turns, and its newest turns, oldest first.

        These are the last ``limit`` turns, and the last ``limit`` turns that wait for a next state.
        """
        count = self._database.rows("SELECT COUNT(*) AS n FROM turns WHERE session_id = ?", (session_id,))[0]["n"]
        if count == 0:
            return 0, []
        waiting = (
            "SELECT number FROM turns INDEXED BY turns_by_session_state"
            " WHERE session_id = ? AND state IN ('waiting', 'ended') ORDER BY number DESC LIMIT ?"
        )
        last = "SELECT number FROM turns WHERE session_id = ? ORDER BY number DESC LIMIT ?"
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM turns WHERE conversation IS NOT NULL"
            f" AND (number IN ({waiting}) OR number IN ({last})) ORDER BY number",
            (session_id, limit, session_id, limit),
        )
        return count, [_node(row) for row in rows]

    def nodes_of_conversations(
        self,
        digests: Sequence[bytes],
        limit: int,
        *,
        turns: Sequence[str] = (),
        session_id: str | None = None,
        session_prefix: str = "",
    ) -> list[TurnNode]:
        """Return named turns, then the turns of the conversations ``digests``, up to the first with a main turn.

        Args:
            digests: of conversations.
            limit: most turns per conversation; those that wait for a next state come first, then the newest.
            turns: ids of turns that count in any conversation.
            session_id: search only this session.
            session_prefix: search only sessions with this prefix.
        """
        within = "COALESCE(session_id = ?, substr(session_id, 1, ?) = ?)"
        there = (session_id, len(session_prefix), session_prefix)
        nodes: list[TurnNode] = []
        if turns:
            marks = ", ".join("?" for _ in turns)
            rows = self._database.rows(
                f"SELECT {_COLUMNS} FROM turns WHERE id IN ({marks}) AND conversation IS NOT NULL AND {within}",
                (*turns, *there),
            )
            nodes = [_node(row) for row in rows]
        for digest in digests:
            rows = self._database.rows(
                f"SELECT {_COLUMNS} FROM turns WHERE number IN (SELECT number FROM turns WHERE conversation = ?"
                f" AND {within} ORDER BY number DESC LIMIT ?)"
                " ORDER BY state IN ('waiting', 'ended') DESC, number DESC LIMIT ?",
                (digest, *there, _LOOK_BACK, limit),
            )
            nodes += [_node(row) for row in rows]
            if any(row["kind"] == "main" for row in rows):
                break
        return nodes

    def idle(self, before: float, after: str, limit: int) -> tuple[list[str], str]:
        """Return the idle sessions of one page of open sessions, and the start of the next page.

        Args:
            before: a session is idle if its last turn finished at this time or earlier, seconds since the epoch.
            after: start of the page: the result of the last call, or ``""``.
            limit: sessions per page.
        """
        page = self._database.rows(
            "SELECT id, (SELECT finished_at FROM turns WHERE session_id = sessions.id ORDER BY number DESC LIMIT 1)"
            " AS active_at FROM sessions WHERE ended_at IS NULL AND id > ? ORDER BY id LIMIT ?",
            (after, limit),
        )
        idle = [row["id"] for row in page if row["active_at"] is not None and row["active_at"] <= before]
        return idle, page[-1]["id"] if len(page) == limit else ""

    def forget(self, session_id: str, *, under_way: bool = False) -> Forgotten:
        """Delete all rows of a session; call `erase` afterwards to remove the bytes.

        On a full disk this uses up the space that `reserve` took.

        Args:
            session_id: the session.
            under_way: whether a reply is running, so that the ledger may have no turn of the session yet.

        Raises:
            UnknownRecordError: if the ledger has no such session.
            LedgerFullError: if the disk is full and the reserve too small.
        """
        alone = not self._database.in_transaction()  # in a larger one the disk's refusal ends all of it
        try:
            return self._forget_passes(session_id, under_way=under_way)
        except LedgerFullError:
            if not alone or not release_reserve(self._database.path):
                raise
            return self._forget_passes(session_id, under_way=under_way)

    def reserve(self) -> bool:
        """Keep disk space for `forget`, if the disk has plenty; return whether it is there."""
        return keep_reserve(self._database.path)

    def _forget_passes(self, session_id: str, *, under_way: bool) -> Forgotten:
        with self._database.transaction():
            episode = episode_of(owner_of(session_id))
            gone = [self._forget(session_id, episode, under_way=under_way)]
            for name in self._passes(session_id):
                of_pass = None if episode is None else episode + name[len(session_id) :]
                gone.append(self._forget(name, of_pass, under_way=False))
        return Forgotten(*(sum(counts) for counts in zip(*map(astuple, gone), strict=True)))

    def forget_person(self, person: str) -> Forgotten:
        """Delete all rows of a person (`openclaw.owners.root`); call `erase` afterwards to remove the bytes.

        A person of whom nothing is left counts as 0 turns.

        Raises:
            LedgerFullError: if the disk is full and the reserve too small.
        """
        try:
            return self._forget_person(person)
        except LedgerFullError:
            if self._database.in_transaction() or not release_reserve(self._database.path):
                raise
            return self._forget_person(person)

    def of_person(self, person: str) -> list[str]:
        """Return the ids of a person's sessions, those of agents' episodes included."""
        rows = self._database.rows("SELECT id FROM sessions ORDER BY id")
        return [row["id"] for row in rows if root(owner_of(row["id"])) == person]

    def _forget_person(self, person: str) -> Forgotten:
        gone = [Forgotten(0, 0, 0)]
        with self._database.transaction() as connection:
            for session_id in self.of_person(person):
                gone.append(self._forget(session_id, episode_of(owner_of(session_id)), under_way=False))
            self._lessons.forget_person(person)
            decided = "decision IN (SELECT number FROM decisions WHERE person = ?)"
            connection.execute(f"DELETE FROM probe_scores WHERE {decided}", (person,))
            for table in ("decisions", "heldout_prompts"):
                connection.execute(f"DELETE FROM {table} WHERE person = ?", (person,))
            connection.execute("UPDATE steps SET person = ? WHERE person = ?", (NOBODY, person))
            forget_usage(connection, person, self._database.clock())
            episodes = [
                (row["id"],)
                for row in connection.execute("SELECT id, owner FROM episodes")
                if root(row["owner"]) == person
            ]
            connection.executemany("DELETE FROM episodes WHERE id = ?", episodes)
        return Forgotten(*(sum(counts) for counts in zip(*map(astuple, gone), strict=True)))

    def _passes(self, session_id: str) -> list[str]:
        """Return the sessions ``ID~2``, ``ID~3`` of which all turns are repetitions, so that no client named them."""
        begin = f"{session_id}{PASS}"
        rows = self._database.rows("SELECT id FROM sessions WHERE substr(id, 1, ?) = ?", (len(begin), begin))
        numbers = [number for row in rows if (number := row["id"][len(begin) :]).isdigit()]
        return [
            f"{begin}{number}"
            for number in numbers
            if all(
                is_of_pass(row["id"], number)
                for row in self._database.rows("SELECT id FROM turns WHERE session_id = ?", (f"{begin}{number}",))
            )
        ]

    def _forget(self, session_id: str, episode: str | None, *, under_way: bool) -> Forgotten:
        of_session = "(turn_id IN (SELECT id FROM turns WHERE session_id = ?) OR episode = ?)"
        turns_of = "(SELECT id FROM turns WHERE session_id = ?)"
        which = (session_id, episode)
        with self._database.transaction() as connection:
            known = connection.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone()
            if known is None and not under_way:
                raise UnknownRecordError(f"{self._database.path} holds no session {session_id!r}")
            trained = connection.execute(
                f"SELECT COUNT(*) FROM samples WHERE state IN ('leased', 'trained') AND {of_session}", which
            ).fetchone()[0]
            connection.execute(
                "INSERT INTO forgotten_samples (id, rollout_id, forgotten_at)"
                " SELECT id, CASE WHEN state IN ('leased', 'trained') THEN rollout_id END, ? FROM samples"
                f" WHERE {of_session}",
                (self._database.clock(), *which),
            )
            connection.execute(
                "UPDATE turns SET segment = NULL, reason = ? WHERE segment IN (SELECT id FROM samples WHERE episode = ?)",
                (FORGOTTEN, which[1]),
            )
            samples = connection.execute(f"DELETE FROM samples WHERE {of_session}", which).rowcount
            connection.execute(f"DELETE FROM verdicts WHERE turn_id IN {turns_of}", (session_id,))
            for table in ("feedback", "logs", "probe_scores", "verdict_log", "responses"):
                connection.execute(f"DELETE FROM {table} WHERE turn_id IN {turns_of}", (session_id,))
            self._lessons.forget_session(connection, session_id)
            forget_prompts(connection, session_id)
            forget_pictures(connection, session_id)
            turns = connection.execute("DELETE FROM turns WHERE session_id = ?", (session_id,)).rowcount
            connection.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
            connection.execute(
                "INSERT INTO forgotten_sessions (session, forgotten_at) VALUES (?, ?)"
                " ON CONFLICT DO UPDATE SET forgotten_at = excluded.forgotten_at",
                (session_digest(session_id), self._database.clock()),
            )
        return Forgotten(turns, samples, trained)

    def is_forgotten(self, session_id: str) -> bool:
        """Return whether the session was deleted at some time."""
        return bool(
            self._database.rows("SELECT 1 FROM forgotten_sessions WHERE session = ?", (session_digest(session_id),))
        )

    def erase(self) -> list[Path]:
        """Remove the bytes of deleted rows from disk, and their lines from the record files; return the deleted backups.

        A reserve that `forget` used up is taken again.

        Raises:
            LedgerUnavailableError: if another process reads the file for too long to empty the log, or a record file cannot be
                written.
        """
        try:
            erase_lines(self._database.path)
        except OSError as error:
            raise LedgerUnavailableError(
                f"ledger {self._database.path}: the rows are deleted, but the .jsonl files beside it still have lines of them: "
                f"{error}; mend that, then repeat the command"
            ) from error
        # SQLite's own wait for readers would block every writer meanwhile.
        path, deadline = self._database.path, time.monotonic() + ERASE_SECONDS
        with self._database.named_errors(), closing(sqlite3.connect(path, timeout=0.0)) as connection:
            while busy := connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                if time.monotonic() > deadline:
                    break
                time.sleep(ERASE_PAUSE_SECONDS)
        if busy:
            raise LedgerUnavailableError(
                f"ledger {path}: the rows are deleted, but {path}-wal still holds them because another process reads it; "
                "repeat the command later, or end that process"
            )
        backups = sorted(path.parent.glob(f"{path.name}.v*.backup*"))
        for backup in backups:
            backup.unlink(missing_ok=True)
        renew_reserve(path)
        return backups

    def quiet_since(self, at: float, limit: int) -> list[str]:
        """Return sessions whose last turn is older than ``at`` and that have no turn to judge, oldest first."""
        rows = self._database.rows(
            "SELECT id FROM sessions WHERE started_at < ? AND NOT EXISTS"
            " (SELECT 1 FROM turns WHERE session_id = sessions.id AND (state = 'pending' OR finished_at >= ?))"
            " ORDER BY started_at LIMIT ?",
            (at, at, limit),
        )
        return [row["id"] for row in rows]


def _node(row: sqlite3.Row) -> TurnNode:
    first = row["first_message"]
    return TurnNode(
        id=row["id"],
        session_id=row["session_id"],
        kind=row["kind"],
        state=row["state"],
        signal=row["signal"],
        conversation=row["conversation"],
        response_message=json.loads(row["response_message"]),
        next_state=None if row["next_state"] is None else json.loads(row["next_state"]),
        first_message=None if first is None else json.loads(first),
    )


def reserve_path(ledger: Path) -> Path:
    """Return the file of a ledger's reserve."""
    return ledger.with_name(f"{ledger.name}.reserve")


def keep_reserve(ledger: Path, size: int = RESERVE_BYTES) -> bool:
    """Take ``size`` bytes of the disk if there is plenty; return whether the reserve is there."""
    try:
        with open(reserve_path(ledger), "ab", opener=private) as file:
            if os.fstat(file.fileno()).st_size >= size:
                return True
            if shutil.disk_usage(ledger.parent).free < MIN_FREE * size:
                return False
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError:
                file.truncate(0)
                raise
    except OSError as error:
        logger.warning("no space is reserved for deleting sessions on a full disk: %s", error)
        return False
    return True


def renew_reserve(ledger: Path) -> None:
    """Take a released reserve again; a ledger that never had one gets none."""
    if reserve_path(ledger).exists():
        keep_reserve(ledger)


def release_reserve(ledger: Path) -> bool:
    """Give the reserve back to the disk; return whether there was one."""
    path = reserve_path(ledger)
    try:
        held = path.stat().st_size > 0
        os.truncate(path, 0)
    except OSError:
        return False
    return held
