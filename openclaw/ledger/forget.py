"""Deletes all data of a session from the ledger, but keeps the counts of trained samples.

Guarantees: one transaction deletes a session's turns, verdicts, samples (trained or not), feedback, pictures that no
other session saw, scores as probes, and those of its further passes in a run on logs (`openclaw.offline`). If the session belongs to an episode, all samples of the episode go, because each may hold turns of several sessions. What remains is a
digest of its id with the time, and a tombstone per sample (`forgotten_samples`) with the step that used it. A batch that
already has such a sample finishes its step; a crash does not bring the sample back. A reply that is running when its
session is deleted is not recorded (`TurnQueries.record_turn`).

`erase` then removes the bytes from disk: it overwrites deleted rows (``secure_delete``), empties the write-ahead log and
deletes the backups of migrations. It does not reach other copies, or checkpoints that learned from the session.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import astuple, dataclass
from pathlib import Path

from openclaw.ledger.database import Database
from openclaw.ledger.episode_records import FORGOTTEN
from openclaw.ledger.exceptions import LedgerFullError, LedgerUnavailableError, UnknownRecordError
from openclaw.ledger.passes import PASS, is_of_pass
from openclaw.ledger.pictures import forget_pictures
from openclaw.ledger.reserve import keep_reserve, release_reserve, renew_reserve
from openclaw.ledger.turns import session_digest
from openclaw.owners import episode_of, owner_of

ERASE_SECONDS = 2.0
"""How long `ForgetQueries.erase` waits for other connections."""
ERASE_PAUSE_SECONDS = 0.05


@dataclass(frozen=True)
class Forgotten:
    """Counts of deleted ``turns``, ``samples``, and samples that a step had used (``trained``)."""

    turns: int
    samples: int
    trained: int


class ForgetQueries(Database):
    """Deletes sessions."""

    def forget_session(self, session_id: str, *, under_way: bool = False) -> Forgotten:
        """Delete all rows of a session; call `erase` afterwards to remove the bytes.

        On a full disk this uses up the space that `reserve` took.

        Args:
            session_id: the session.
            under_way: whether a reply is running, so that the ledger may have no turn of the session yet.

        Raises:
            UnknownRecordError: if the ledger has no such session.
            LedgerFullError: if the disk is full and the reserve too small.
        """
        with self._lock:
            alone = not self._connection.in_transaction  # in a larger transaction the disk's refusal ends all of it
        try:
            return self._forget_passes(session_id, under_way=under_way)
        except LedgerFullError:
            if not alone or not release_reserve(self.path):
                raise
            return self._forget_passes(session_id, under_way=under_way)

    def reserve(self) -> bool:
        """Keep disk space for `forget_session`, if the disk has plenty; return whether it is there."""
        return keep_reserve(self.path)

    def _forget_passes(self, session_id: str, *, under_way: bool) -> Forgotten:
        with self.transaction():
            episode = episode_of(owner_of(session_id))
            gone = [self._forget(session_id, episode, under_way=under_way)]
            for name in self._passes(session_id):
                of_pass = None if episode is None else episode + name[len(session_id) :]
                gone.append(self._forget(name, of_pass, under_way=False))
        return Forgotten(*(sum(counts) for counts in zip(*map(astuple, gone), strict=True)))

    def _passes(self, session_id: str) -> list[str]:
        """Return the sessions ``ID~2``, ``ID~3`` of which all turns are repetitions, so that no client named them."""
        begin = f"{session_id}{PASS}"
        found = self.rows("SELECT id FROM sessions WHERE substr(id, 1, ?) = ?", (len(begin), begin))
        numbers = [number for row in found if (number := row["id"][len(begin) :]).isdigit()]
        return [
            f"{begin}{number}"
            for number in numbers
            if all(
                is_of_pass(row["id"], number)
                for row in self.rows("SELECT id FROM turns WHERE session_id = ?", (f"{begin}{number}",))
            )
        ]

    def _forget(self, session_id: str, episode: str | None, *, under_way: bool) -> Forgotten:
        of_session = "(turn_id IN (SELECT id FROM turns WHERE session_id = ?) OR episode = ?)"
        turns_of = "(SELECT id FROM turns WHERE session_id = ?)"
        which = (session_id, episode)
        with self.transaction() as connection:
            known = connection.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone()
            if known is None and not under_way:
                raise UnknownRecordError(f"{self.path} holds no session {session_id!r}")
            trained = connection.execute(
                f"SELECT COUNT(*) FROM samples WHERE state IN ('leased', 'trained') AND {of_session}", which
            ).fetchone()[0]
            connection.execute(
                "INSERT INTO forgotten_samples (id, rollout_id, forgotten_at)"
                " SELECT id, CASE WHEN state IN ('leased', 'trained') THEN rollout_id END, ? FROM samples"
                f" WHERE {of_session}",
                (self.clock(), *which),
            )
            connection.execute(
                "UPDATE turns SET segment = NULL, reason = ? WHERE segment IN (SELECT id FROM samples WHERE episode = ?)",
                (FORGOTTEN, which[1]),
            )
            samples = connection.execute(f"DELETE FROM samples WHERE {of_session}", which).rowcount
            connection.execute(f"DELETE FROM verdicts WHERE turn_id IN {turns_of}", (session_id,))
            for table in ("feedback", "logs", "probe_scores"):
                connection.execute(f"DELETE FROM {table} WHERE turn_id IN {turns_of}", (session_id,))
            forget_pictures(connection, session_id)
            turns = connection.execute("DELETE FROM turns WHERE session_id = ?", (session_id,)).rowcount
            connection.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
            connection.execute(
                "INSERT INTO forgotten_sessions (session, forgotten_at) VALUES (?, ?)"
                " ON CONFLICT DO UPDATE SET forgotten_at = excluded.forgotten_at",
                (session_digest(session_id), self.clock()),
            )
        return Forgotten(turns, samples, trained)

    def is_forgotten(self, session_id: str) -> bool:
        """Return whether the session was deleted at some time."""
        return bool(self.rows("SELECT 1 FROM forgotten_sessions WHERE session = ?", (session_digest(session_id),)))

    def erase(self) -> list[Path]:
        """Remove the bytes of deleted rows from disk; return the deleted backups.

        A reserve that `forget_session` used up is taken again.

        Raises:
            LedgerUnavailableError: if another process reads the file for too long to empty the log.
        """
        # SQLite's own wait for readers would block every writer meanwhile.
        deadline = time.monotonic() + ERASE_SECONDS
        with self._named_errors(), closing(sqlite3.connect(self.path, timeout=0.0)) as connection:
            while busy := connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                if time.monotonic() > deadline:
                    break
                time.sleep(ERASE_PAUSE_SECONDS)
        if busy:
            raise LedgerUnavailableError(
                f"ledger {self.path}: the rows are deleted, but {self.path}-wal still holds them because another process "
                "reads it; repeat the command later, or end that process"
            )
        backups = sorted(self.path.parent.glob(f"{self.path.name}.v*.backup*"))
        for backup in backups:
            backup.unlink(missing_ok=True)
        renew_reserve(self.path)
        return backups

    def sessions_quiet_since(self, at: float, limit: int) -> list[str]:
        """Return sessions whose last turn is older than ``at`` and that have no turn to judge, oldest first."""
        found = self.rows(
            "SELECT id FROM sessions WHERE started_at < ? AND NOT EXISTS"
            " (SELECT 1 FROM turns WHERE session_id = sessions.id AND (state = 'pending' OR finished_at >= ?))"
            " ORDER BY started_at LIMIT ?",
            (at, at, limit),
        )
        return [row["id"] for row in found]

    def forgotten_sample_count(self) -> int:
        """Return the number of deleted samples."""
        return self.rows("SELECT COUNT(*) AS n FROM forgotten_samples")[0]["n"]
