"""Which replies the weights of one version gave lately, for the gate's look at an engine that has a candidate first.

Guarantee: read-only; a reply counts for a version if an engine of this run gave it and all its tokens are of that version.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw.ledger.codec import unpack_ids
from openclaw.ledger.database import Database

_OTHER_VERSION = "SELECT 1 FROM json_each(weight_versions) WHERE json_extract(value, '$.version') IS NOT ?"


@dataclass(frozen=True)
class ServedTurn:
    """A reply that a client got.

    Attributes:
        response_ids: the ids that the engine sampled.
        cut: whether a length limit ended it.
        malformed_calls: tool calls in it that could not be read.
        seconds: from the request to the last token.
        score: the verdict's score, -1, 0 or 1; None before it.
    """

    response_ids: Sequence[int]
    cut: bool
    malformed_calls: int
    seconds: float
    score: int | None


class ServedTurnQueries(Database):
    """The ledger's queries for the gate while one engine has a candidate."""

    def newest_turn(self) -> int:
        """Return the number of the newest turn; 0 without any."""
        return self.rows("SELECT COALESCE(MAX(number), 0) AS n FROM turns")[0]["n"]

    def served_turns(self, version: str, after: int, count: int) -> list[ServedTurn]:
        """Return the newest turns of a version that were not aborted, newest first.

        Args:
            version: of the weights.
            after: only turns with a larger number.
            count: most turns to return.
        """
        found = self.rows(
            "SELECT response_ids, finish_reason, malformed_calls, finished_at - created_at AS seconds, verdict"
            " FROM turns LEFT JOIN verdicts ON verdicts.turn_id = turns.id"
            " WHERE number > ? AND copied = 0 AND scored = 0 AND finish_reason <> 'abort'"
            f" AND weight_versions <> '[]' AND NOT EXISTS ({_OTHER_VERSION}) ORDER BY number DESC LIMIT ?",
            (after, version, count),
        )
        return [
            ServedTurn(
                response_ids=unpack_ids(row["response_ids"]),
                cut=row["finish_reason"] == "length",
                malformed_calls=row["malformed_calls"],
                seconds=row["seconds"],
                score=json.loads(row["verdict"]).get("score") if row["verdict"] else None,
            )
            for row in found
        ]
