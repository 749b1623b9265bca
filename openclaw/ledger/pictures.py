"""The pictures that turns saw: each file once, under its digest, and where each turn's prompt has it.

Guarantees: a picture is committed with the first turn that saw it, and deleted with the last one, in the same transaction.
The files lie in the ledger itself, so they have its mode, its walls between owners and its erasure. A file is the PNG
that engine and trainer read, at the model's size.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

from openclaw.ledger.database import Database
from openclaw.ledger.records import SeenPicture

NO_PICTURE = "no_picture"
"""Why a turn or a sample is not trained: this ledger lacks a picture that its prompt has."""
_UNUSED = "NOT EXISTS (SELECT 1 FROM turn_pictures WHERE turn_pictures.sha256 = pictures.sha256)"


class PictureQueries(Database):
    """The ledger's queries for pictures."""

    def pictures_of(self, turn_id: str) -> list[SeenPicture]:
        """Return the pictures of a turn's prompt, in order, with their files."""
        found = self.rows(
            "SELECT sha256, start, tokens, png FROM turn_pictures JOIN pictures USING (sha256)"
            " WHERE turn_id = ? ORDER BY start",
            (turn_id,),
        )
        return [SeenPicture(row["sha256"], row["start"], row["tokens"], row["png"]) for row in found]

    def picture_places(self, turn_ids: Sequence[str]) -> dict[str, tuple[SeenPicture, ...]]:
        """Return the pictures of the turns that saw any, without their files."""
        places: dict[str, list[SeenPicture]] = {}
        for turn_id in turn_ids:
            for row in self.rows("SELECT * FROM turn_pictures WHERE turn_id = ? ORDER BY start", (turn_id,)):
                places.setdefault(turn_id, []).append(SeenPicture(row["sha256"], row["start"], row["tokens"]))
        return {turn_id: tuple(found) for turn_id, found in places.items()}

    def picture_files(self) -> Iterator[tuple[str, bytes]]:
        """Yield digest and file of each picture."""
        for row in self.rows("SELECT sha256 FROM pictures ORDER BY rowid"):
            for found in self.rows("SELECT png FROM pictures WHERE sha256 = ?", (row["sha256"],)):
                yield row["sha256"], found["png"]


def store_pictures(connection: sqlite3.Connection, turn_id: str, pictures: Sequence[SeenPicture]) -> None:
    """Store the pictures of a new turn inside a transaction."""
    for each in pictures:
        connection.execute(
            "INSERT INTO pictures (sha256, png) VALUES (?, ?) ON CONFLICT DO NOTHING", (each.sha256, each.png)
        )
        connection.execute(
            "INSERT INTO turn_pictures (turn_id, start, tokens, sha256) VALUES (?, ?, ?, ?)",
            (turn_id, each.start, each.tokens, each.sha256),
        )


def copy_pictures(source: PictureQueries, connection: sqlite3.Connection, turn_id: str, new_id: str) -> None:
    """Store the pictures of another ledger's turn as those of ``new_id`` inside a transaction."""
    store_pictures(connection, new_id, source.pictures_of(turn_id))


def forget_pictures(connection: sqlite3.Connection, session_id: str) -> None:
    """Delete what a session's turns saw inside a transaction; a picture that other turns saw stays theirs."""
    of_session = "turn_id IN (SELECT id FROM turns WHERE session_id = ?)"
    seen = connection.execute(f"SELECT DISTINCT sha256 FROM turn_pictures WHERE {of_session}", (session_id,)).fetchall()
    connection.execute(f"DELETE FROM turn_pictures WHERE {of_session}", (session_id,))
    connection.executemany(f"DELETE FROM pictures WHERE sha256 = ? AND {_UNUSED}", [(row["sha256"],) for row in seen])
