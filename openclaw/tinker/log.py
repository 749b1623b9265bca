"""Models that programs train over an interface: an ordered log of commands for each, from which its state follows.

A model's commands have numbers from 0 (its creation) on, and run in this order, however they arrive. A state of a model is what its
commands up to a number have made; a snapshot on disk is such a state, so a server that was killed reads the newest snapshot and
repeats the commands after it. Bodies of commands that a snapshot contains are deleted.

Guarantees: a command is in the file before its program knows of it. The same command sent twice is one; another one under the
same number is refused. A command is done once, with the state that it led to; a result that was given is the same when it is asked for
again, until it is old. Ids are known to their owners alone. What a command took is counted for its owner with its result, so a kill
neither loses nor doubles it (`openclaw.ledger.usage`): tokens with loss once the step is done that uses their gradient.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from openclaw.ledger.database import Database
from openclaw.ledger.exceptions import LedgerError, LedgerVersionError, UnknownRecordError
from openclaw.ledger.records import Tokens
from openclaw.ledger.schema import USAGE_TABLE
from openclaw.ledger.usage import Usage, add_usage

CREATE = 0
"""The number of a model's creation."""
Gradient = Literal["used", "dropped"]
"""What a command did with the gradient of the passes before it."""
NO_TOKENS = Tokens()


class CommandConflictError(LedgerError):
    """Another command has this number already."""


@dataclass(frozen=True)
class Command:
    """A command of a model.

    Attributes:
        id: by which its program asks for the result.
        model: id of the model.
        number: in the model's order.
        kind: what it does.
        body: of the request; None where it was not asked for, and once nothing repeats it.
        state: ``waiting``, ``done`` or ``failed``.
        result: of a done command, as it is sent; of a failed one the reason. None while it waits, and when it is old.
    """

    id: str
    model: str
    number: int
    kind: str
    body: bytes | None
    state: str
    result: bytes | None


@dataclass(frozen=True)
class ClientModel:
    """A model.

    Attributes:
        id: of the model.
        owner: see `openclaw.owners`.
        session: id of the session that made it.
        next: number of the command that runs next.
        snapshot: folder of its newest snapshot; None before the first.
        contains: number of the last command that the snapshot contains; -1 without one.
        facts: what its creation says of it.
        used_at: seconds since the epoch.
    """

    id: str
    owner: str
    session: str
    next: int
    snapshot: str | None
    contains: int
    facts: Mapping[str, Any]
    used_at: float


@dataclass(frozen=True)
class KeptWeights:
    """Weights that were saved under a name.

    Attributes:
        path: by which programs name them.
        owner: see `openclaw.owners`.
        model: id of the model.
        kind: ``training`` or ``sampler``.
        place: a folder, or the name of an adapter on the engines.
        facts: of the model, and what the program noted.
        created_at: seconds since the epoch.
        expires_at: the same; None: never.
    """

    path: str
    owner: str
    model: str
    kind: str
    place: str
    facts: Mapping[str, Any]
    created_at: float
    expires_at: float | None


TABLES = (
    """CREATE TABLE client_sessions (
        id TEXT PRIMARY KEY, owner TEXT NOT NULL, name TEXT, created_at REAL NOT NULL, ended INTEGER NOT NULL DEFAULT 0
    )""",
    """CREATE TABLE client_models (
        id TEXT PRIMARY KEY,
        owner TEXT NOT NULL,
        session_id TEXT NOT NULL REFERENCES client_sessions(id),
        next INTEGER NOT NULL DEFAULT 0,
        snapshot TEXT,
        contains INTEGER NOT NULL DEFAULT -1,
        facts TEXT,
        used_at REAL NOT NULL
    )""",
    """CREATE TABLE client_commands (
        id TEXT PRIMARY KEY,
        model_id TEXT NOT NULL REFERENCES client_models(id),
        number INTEGER NOT NULL,
        kind TEXT NOT NULL,
        body BLOB,
        digest TEXT NOT NULL,
        state TEXT NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'done', 'failed')),
        result BLOB,
        finished_at REAL,
        UNIQUE (model_id, number)
    )""",
    "CREATE INDEX waiting_commands ON client_commands (model_id, number) WHERE state = 'waiting'",
    """CREATE TABLE client_weights (
        path TEXT PRIMARY KEY,
        owner TEXT NOT NULL,
        model_id TEXT NOT NULL REFERENCES client_models(id),
        kind TEXT NOT NULL,
        place TEXT NOT NULL,
        facts TEXT NOT NULL,
        created_at REAL NOT NULL,
        expires_at REAL
    )""",
    """CREATE TABLE client_samplers (
        id TEXT PRIMARY KEY,
        owner TEXT NOT NULL,
        session_id TEXT NOT NULL REFERENCES client_sessions(id),
        model_id TEXT,
        path TEXT,
        adapter TEXT
    )""",
)


METERS = (
    USAGE_TABLE,
    # tokens with loss of the passes whose gradient waits for a step
    "ALTER TABLE client_models ADD COLUMN owed INTEGER NOT NULL DEFAULT 0",
)
VERSIONS = (TABLES, METERS)
"""The statements that lead to each version of the file, from 1 on."""
VERSION = len(VERSIONS)


def create_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Give a file the tables of `VERSION`.

    Raises:
        LedgerVersionError: a newer version wrote the file.
    """
    connection.execute("BEGIN IMMEDIATE")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version < VERSION:
        for statement in chain(*VERSIONS[version:]):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")
    if version > VERSION:
        raise LedgerVersionError(
            f"{path} has version {version}, but this program supports {VERSION}: update the program"
        )


class CommandLog:
    """Sessions, models, commands, weights and samplers of programs, in one file with the guarantees of a ledger.

    Attributes:
        usage: meters of tokens, by owner and day.
    """

    def __init__(self, path: str | Path, clock: Callable[[], float] = time.time) -> None:
        """Open the log at ``path``, creating it; raises as `Database`."""
        self._database = Database(path, clock, migrate=create_tables)
        self.usage = Usage(self._database)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    # Sessions

    def open_session(self, session: str, owner: str, name: str | None) -> None:
        """Record a new session."""
        columns = {"id": session, "owner": owner, "name": name, "created_at": self._database.clock()}
        with self._database.transaction() as connection:
            self._database.insert(connection, "client_sessions", columns)

    def check_session(self, session: str, owner: str) -> bool:
        """Return whether a session of ``owner`` goes on.

        Raises:
            UnknownRecordError: there is none.
        """
        row = self._one("client_sessions", session, owner)
        return not row["ended"]

    def open_sessions(self) -> list[tuple[str, str]]:
        """Return the sessions that go on, with their owners."""
        return [
            (row["id"], row["owner"]) for row in self._database.rows("SELECT * FROM client_sessions WHERE NOT ended")
        ]

    def sessions_of(self, owner: str) -> list[str]:
        """Return the sessions of an owner, the newest first."""
        rows = self._database.rows("SELECT id FROM client_sessions WHERE owner = ? ORDER BY created_at DESC", (owner,))
        return [row["id"] for row in rows]

    def session(self, session: str, owner: str) -> tuple[str | None, list[str], list[str]]:
        """Return the name of a session, its models and its sampling sessions.

        Raises:
            UnknownRecordError: there is none.
        """
        name = self._one("client_sessions", session, owner)["name"]
        rows = self._database.rows("SELECT id FROM client_samplers WHERE session_id = ?", (session,))
        return name, self.models_of(session), [row["id"] for row in rows]

    def end_session(self, session: str, owner: str) -> None:
        """Let a session end; what its commands and samplers named goes.

        Raises:
            UnknownRecordError: there is none.
        """
        with self._database.transaction() as connection:
            self._one("client_sessions", session, owner)
            connection.execute("UPDATE client_sessions SET ended = 1 WHERE id = ?", (session,))
            connection.execute("DELETE FROM client_samplers WHERE session_id = ?", (session,))
            connection.execute(
                "UPDATE client_commands SET body = NULL"
                " WHERE model_id IN (SELECT id FROM client_models WHERE session_id = ?) AND body IS NOT NULL",
                (session,),
            )

    def models_of(self, session: str) -> list[str]:
        """Return the models of a session."""
        return [
            row["id"] for row in self._database.rows("SELECT id FROM client_models WHERE session_id = ?", (session,))
        ]

    # Commands

    def submit(
        self, model: str, owner: str, number: int, kind: str, body: bytes, *, session: str | None = None
    ) -> Command:
        """Record a command, or return the one that was recorded before.

        Args:
            model: id; of a new model if ``number`` is that of a creation.
            owner: who sends it.
            number: in the model's order.
            kind: what it does.
            body: of the request.
            session: of a creation.

        Raises:
            UnknownRecordError: ``owner`` has no such model.
            CommandConflictError: another command has this number.
        """
        digest = hashlib.sha256(kind.encode() + b"\0" + body).hexdigest()
        with self._database.transaction() as connection:
            if number == CREATE and session is not None:
                connection.execute(
                    "INSERT OR IGNORE INTO client_models (id, owner, session_id, used_at) VALUES (?, ?, ?, ?)",
                    (model, owner, session, self._database.clock()),
                )
            self._one("client_models", model, owner)
            connection.execute("UPDATE client_models SET used_at = ? WHERE id = ?", (self._database.clock(), model))
            there = self._command("model_id = ? AND number = ?", (model, number))
            if there is not None:
                if there["digest"] != digest:
                    raise CommandConflictError(f"command {number} of {model} was sent before with other contents")
                return _as_command(there)
            columns = {"model_id": model, "number": number, "kind": kind, "body": body, "digest": digest}
            identity = f"{model}:{number}"
            self._database.insert(connection, "client_commands", {"id": identity, **columns})
        return Command(identity, model, number, kind, body, "waiting", None)

    def next_commands(self) -> list[Command]:
        """Return the command that runs next of each model that has one, the longest waiting first; without their bodies."""
        rows = self._database.rows(
            f"SELECT {SLIM} FROM client_commands JOIN client_models ON client_models.id = model_id"
            " JOIN client_sessions ON client_sessions.id = session_id AND NOT ended"
            " WHERE state = 'waiting' AND number = client_models.next ORDER BY client_commands.rowid"
        )
        return [_as_command(row) for row in rows]

    def whole(self, command: Command) -> Command:
        """Return a command with its body."""
        return _as_command(self._database.rows("SELECT * FROM client_commands WHERE id = ?", (command.id,))[0])

    def numbered(self, model: str, number: int) -> Command:
        """Return a model's command of a number, without its body."""
        sql = f"SELECT {SLIM} FROM client_commands WHERE model_id = ? AND number = ?"
        return _as_command(self._database.rows(sql, (model, number))[0])

    def finish(
        self,
        command: Command,
        result: bytes,
        *,
        failed: bool = False,
        repeated: bool = True,
        facts: Mapping[str, Any] | None = None,
        kept: KeptWeights | None = None,
        spent: Tokens = NO_TOKENS,
        with_loss: int = 0,
        gradient: Gradient | None = None,
    ) -> None:
        """Record what a command gave and took.

        Args:
            command: that ran.
            result: as it is sent, or the reason of a failure.
            failed: whether it failed.
            repeated: whether it is repeated after a snapshot; the body of another one goes.
            facts: of the model, of its creation.
            kept: weights that it saved.
            spent: tokens that count at once.
            with_loss: tokens of a pass that count as trained with the step that uses its gradient.
            gradient: what became of the gradient so far; None: it goes on.
        """
        state, now = "failed" if failed else "done", self._database.clock()
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE client_commands SET state = ?, result = ?, finished_at = ? WHERE id = ?",
                (state, result, now, command.id),
            )
            if not repeated:
                connection.execute("UPDATE client_commands SET body = NULL WHERE id = ?", (command.id,))
            connection.execute("UPDATE client_models SET next = ? WHERE id = ?", (command.number + 1, command.model))
            if facts is not None:
                connection.execute(
                    "UPDATE client_models SET facts = ? WHERE id = ?", (json.dumps(facts), command.model)
                )
            if kept is not None:
                self._keep(connection, kept)
            self._count(connection, command.model, spent, with_loss, gradient)

    def _count(
        self, connection: sqlite3.Connection, model: str, spent: Tokens, with_loss: int, gradient: Gradient | None
    ) -> None:
        owner, owed = connection.execute("SELECT owner, owed FROM client_models WHERE id = ?", (model,)).fetchone()
        if gradient == "used":
            spent += Tokens(trained=owed)
        now_owed = (0 if gradient is not None else owed) + with_loss
        if now_owed != owed:
            connection.execute("UPDATE client_models SET owed = ? WHERE id = ?", (now_owed, model))
        if spent != NO_TOKENS:
            add_usage(connection, owner, self._database.clock(), spent)

    def command(self, identity: str, owner: str) -> Command:
        """Return a command.

        Raises:
            UnknownRecordError: ``owner`` has none of this id.
        """
        row = self._command("client_commands.id = ?", (identity,))
        if row is None:
            raise UnknownRecordError(f"there is no request {identity!r}")
        self._one("client_models", row["model_id"], owner)
        return _as_command(row)

    def forget_results(self, before: float) -> None:
        """Delete results from before a time, which nobody will ask for again."""
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE client_commands SET result = NULL WHERE finished_at < ? AND result IS NOT NULL", (before,)
            )

    # Models

    def model(self, model: str, owner: str) -> ClientModel:
        """Return a model.

        Raises:
            UnknownRecordError: ``owner`` has none of this id.
        """
        return _as_model(self._one("client_models", model, owner))

    def models(self, owner: str | None = None) -> list[ClientModel]:
        """Return the models that were created, of all owners by default, the newest use first."""
        rows = self._database.rows(
            "SELECT * FROM client_models WHERE facts IS NOT NULL AND (?1 IS NULL OR owner = ?1) ORDER BY used_at DESC, id",
            (owner,),
        )
        return [_as_model(row) for row in rows]

    def owner_of(self, model: str) -> str:
        """Return who has a model."""
        return str(self._fact(model, "owner"))

    def session_of(self, model: str) -> str:
        """Return the session that made a model."""
        return str(self._fact(model, "session_id"))

    def facts_of(self, model: str) -> dict[str, Any]:
        """Return what its creation says of a model."""
        return dict(json.loads(self._fact(model, "facts") or "{}"))

    def _fact(self, model: str, column: str) -> Any:
        return self._database.rows(f"SELECT {column} FROM client_models WHERE id = ?", (model,))[0][0]

    def live_models(self) -> list[ClientModel]:
        """Return the models whose sessions have not ended."""
        rows = self._database.rows(
            "SELECT client_models.* FROM client_models JOIN client_sessions ON client_sessions.id = session_id"
            " WHERE facts IS NOT NULL AND NOT ended"
        )
        return [_as_model(row) for row in rows]

    def snapshot(self, model: str, number: int, folder: str) -> None:
        """Record the folder that contains all commands up to ``number``, whose bodies go."""
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE client_models SET snapshot = ?, contains = ? WHERE id = ?", (folder, number, model)
            )
            connection.execute(
                "UPDATE client_commands SET body = NULL WHERE model_id = ? AND number <= ? AND body IS NOT NULL",
                (model, number),
            )

    def after_snapshot(self, model: ClientModel) -> list[int]:
        """Return the numbers of the commands that ran after a model's snapshot, in their order."""
        rows = self._database.rows(
            "SELECT number FROM client_commands WHERE model_id = ? AND number > ? AND number < ? AND body IS NOT NULL"
            " ORDER BY number",
            (model.id, model.contains, model.next),
        )
        return [row["number"] for row in rows]

    def places(self) -> tuple[set[str], set[str]]:
        """Return the folders of saved weights and the adapters that somebody may still ask for."""
        weights = self._database.rows("SELECT kind, place FROM client_weights")
        samplers = self._database.rows("SELECT adapter FROM client_samplers WHERE adapter IS NOT NULL")
        adapters = {row["place"] for row in weights if row["kind"] == "sampler"} | {row["adapter"] for row in samplers}
        return {row["place"] for row in weights if row["kind"] == "training"}, adapters

    # Weights

    def weights(self, path: str, owner: str) -> KeptWeights:
        """Return weights by their path.

        Raises:
            UnknownRecordError: ``owner`` has none of this path, or they have expired.
        """
        for kept in self.all_weights(owner):
            if kept.path == path:
                return kept
        raise UnknownRecordError(f"there are no weights {path!r}")

    def all_weights(self, owner: str | None = None, model: str | None = None) -> list[KeptWeights]:
        """Return the weights that have not expired, the newest first."""
        rows = self._database.rows(
            "SELECT * FROM client_weights WHERE (?1 IS NULL OR owner = ?1) AND (?2 IS NULL OR model_id = ?2)"
            " AND (expires_at IS NULL OR expires_at > ?3) ORDER BY created_at DESC, path",
            (owner, model, self._database.clock()),
        )
        return [_as_weights(row) for row in rows]

    def expired_weights(self) -> list[KeptWeights]:
        """Return the weights whose time is over."""
        rows = self._database.rows("SELECT * FROM client_weights WHERE expires_at <= ?", (self._database.clock(),))
        return [_as_weights(row) for row in rows]

    def drop_weights(self, kept: KeptWeights) -> None:
        """Forget weights, unless others have their path by now."""
        with self._database.transaction() as connection:
            connection.execute(
                "DELETE FROM client_weights WHERE path = ? AND created_at = ?", (kept.path, kept.created_at)
            )

    def expire_weights(self, path: str, at: float | None) -> None:
        """Let weights expire at a time, None: never."""
        with self._database.transaction() as connection:
            connection.execute("UPDATE client_weights SET expires_at = ? WHERE path = ?", (at, path))

    def _keep(self, connection: sqlite3.Connection, kept: KeptWeights) -> None:
        connection.execute("DELETE FROM client_weights WHERE path = ?", (kept.path,))
        columns = {
            **{"path": kept.path, "owner": kept.owner, "model_id": kept.model, "kind": kept.kind},
            **{"place": kept.place, "facts": json.dumps(kept.facts)},
            **{"created_at": kept.created_at, "expires_at": kept.expires_at},
        }
        self._database.insert(connection, "client_weights", columns)

    # Samplers

    def add_sampler(
        self,
        sampler: str,
        owner: str,
        session: str,
        path: str | None,
        adapter: str | None,
        *,
        model: str | None = None,
        most: int = 0,
    ) -> None:
        """Record what a sampling session asks: weights by their path, an adapter without a name, or with neither the base.

        Repeating it changes nothing. ``model`` has such an adapter; of its older ones, ``most`` may still be asked for.

        Raises:
            CommandConflictError: it was recorded with other weights.
        """
        with self._database.transaction() as connection:
            rows = self._database.rows("SELECT * FROM client_samplers WHERE id = ?", (sampler,))
            if rows:
                if (rows[0]["owner"], rows[0]["path"], rows[0]["model_id"]) != (owner, path, model):
                    raise CommandConflictError(f"the sampling session {sampler} was begun before with other weights")
                return
            columns = {"id": sampler, "owner": owner, "session_id": session, "path": path, "adapter": adapter}
            self._database.insert(connection, "client_samplers", {**columns, "model_id": model})
            connection.execute(
                "UPDATE client_samplers SET adapter = NULL WHERE model_id = ?1 AND rowid NOT IN"
                " (SELECT rowid FROM client_samplers WHERE model_id = ?1 ORDER BY rowid DESC LIMIT ?2)",
                (model, most),
            )

    def sampler(self, sampler: str, owner: str) -> tuple[str | None, str | None]:
        """Return the path and the adapter of a sampling session; neither: it asks the base.

        Raises:
            UnknownRecordError: ``owner`` has none of this id, or its weights are not kept any more.
        """
        row = self._one("client_samplers", sampler, owner)
        if row["model_id"] is not None and row["adapter"] is None:
            raise UnknownRecordError(f"the weights of {sampler} are not kept any more; ask for a new sampling client")
        return row["path"], row["adapter"]

    # Rows

    def _one(self, table: str, identity: str, owner: str) -> sqlite3.Row:
        rows = self._database.rows(f"SELECT * FROM {table} WHERE id = ? AND owner = ?", (identity, owner))
        if not rows:
            raise UnknownRecordError(f"there is no {NOUNS[table]} {identity!r}")
        return rows[0]

    def _command(self, condition: str, parameters: Sequence[Any]) -> sqlite3.Row | None:
        rows = self._database.rows(f"SELECT {SLIM}, digest FROM client_commands WHERE {condition}", tuple(parameters))
        return rows[0] if rows else None


SLIM = "client_commands.id, model_id, number, kind, NULL AS body, state, result"
"""Columns of a command without its body, which may be long."""
NOUNS = {"client_sessions": "session", "client_models": "model", "client_samplers": "sampling session"}


def _as_command(row: sqlite3.Row) -> Command:
    return Command(row["id"], row["model_id"], row["number"], row["kind"], row["body"], row["state"], row["result"])


def _as_model(row: sqlite3.Row) -> ClientModel:
    facts = json.loads(row["facts"] or "{}")
    return ClientModel(
        **{"id": row["id"], "owner": row["owner"], "session": row["session_id"], "next": row["next"]},
        **{"snapshot": row["snapshot"], "contains": row["contains"], "facts": facts, "used_at": row["used_at"]},
    )


def _as_weights(row: sqlite3.Row) -> KeptWeights:
    return KeptWeights(
        **{"path": row["path"], "owner": row["owner"], "model": row["model_id"], "kind": row["kind"]},
        **{"place": row["place"], "facts": json.loads(row["facts"])},
        **{"created_at": row["created_at"], "expires_at": row["expires_at"]},
    )
