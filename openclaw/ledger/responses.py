"""Responses that their clients may ask for again, or continue by naming them.

A row has the items that a request added and the response as it was sent. The items before them are those of the response
that it continues, so a long conversation is kept once.

Guarantees: a response is committed with its turn, and goes with the turn's session. One that redaction would change is not
kept, because it could not be given back as it was. Deleting one leaves its turn; what continues it is then as unknown as itself.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from typing import Any

from openclaw.ledger.database import Database
from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.ledger.records import KeptResponse

LONGEST = 4096
"""Most responses that continue each other."""


class Responses:
    """The kept responses of a ledger, by the ids of their turns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def chain(self, turn_id: str, reaches: Callable[[str], bool]) -> list[KeptResponse]:
        """Return a response and those that it continues, oldest first.

        Args:
            turn_id: of the response.
            reaches: whether the client may read a session, given its stored id.

        Raises:
            UnknownRecordError: if one of them is not there, or not the client's.
        """
        rows = self._database.rows(
            "WITH RECURSIVE chain(turn_id, previous, items, response, depth) AS ("
            " SELECT turn_id, previous, items, response, 0 FROM responses WHERE turn_id = ?"
            " UNION ALL SELECT responses.turn_id, responses.previous, responses.items, responses.response, depth + 1"
            " FROM responses JOIN chain ON responses.turn_id = chain.previous WHERE depth < ?)"
            " SELECT chain.*, session_id FROM chain JOIN turns ON turns.id = turn_id ORDER BY depth DESC",
            (turn_id, LONGEST),
        )
        if not rows or rows[0]["previous"] is not None or not all(reaches(row["session_id"]) for row in rows):
            raise UnknownRecordError(f"{self._database.path} has no whole response {turn_id!r} of this client")
        return [KeptResponse(json.loads(row["items"]), json.loads(row["response"]), row["previous"]) for row in rows]

    def get(self, turn_id: str, reaches: Callable[[str], bool]) -> dict[str, Any]:
        """Return a response as it was sent.

        Raises:
            UnknownRecordError: if it is not there, or not the client's.
        """
        rows = self._database.rows(
            "SELECT response, session_id FROM responses JOIN turns ON turns.id = turn_id WHERE turn_id = ?", (turn_id,)
        )
        if not rows or not reaches(rows[0]["session_id"]):
            raise UnknownRecordError(f"{self._database.path} has no response {turn_id!r} of this client")
        return json.loads(rows[0]["response"])

    def delete(self, turn_id: str, reaches: Callable[[str], bool]) -> None:
        """Delete a response; its turn stays.

        Raises:
            UnknownRecordError: if it is not there, or not the client's.
        """
        with self._database.transaction() as connection:
            self.get(turn_id, reaches)
            connection.execute("DELETE FROM responses WHERE turn_id = ?", (turn_id,))


def keep_response(connection: sqlite3.Connection, turn_id: str, kept: KeptResponse) -> None:
    """Keep the response of a new turn inside a transaction."""
    connection.execute(
        "INSERT INTO responses (turn_id, previous, items, response) VALUES (?, ?, ?, ?)",
        (turn_id, kept.previous, json.dumps(kept.items), json.dumps(kept.response)),
    )
