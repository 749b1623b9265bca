"""Turns that came as text from logs: they wait for scores, are scored, and are scored again when the weights moved on.

Guarantees: a turn is recorded once, under an id that its content determines. Ids and log-probabilities of a turn are
written together, and the turns of a conversation become pending together, so that a judge of whole sessions sees all of
them. A turn that cannot be scored ends with a reason. `score_again` takes back samples only if no other batch has one of
their turn, and keeps the verdict.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from openclaw.ledger.codec import decode_turn, encode_turn
from openclaw.ledger.database import Database
from openclaw.ledger.judging import Judging
from openclaw.ledger.records import TopK, Turn, Verdict, VersionSpan
from openclaw.ledger.samples import ROLLOUT
from openclaw.ledger.turns import Turns

RESCORED = "rescored"
"""Why a sample was dropped: its scores were too old, and its turn is scored again."""


@dataclass(frozen=True)
class ReplyScores:
    """What scoring adds to a turn.

    Attributes:
        prompt_ids: of the rendered request.
        response_ids: of the rendered reply, its end token included.
        log_probs: of the response tokens, at the trainer's temperature.
        version: of the weights that scored.
        topk: their most likely tokens at each response token, if the method reads them.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    log_probs: list[float]
    version: str
    topk: TopK | None = None


class Logs:
    """Turns that were read from logs, and their scores."""

    def __init__(self, database: Database, turns: Turns, judging: Judging) -> None:
        self._database = database
        self._turns = turns
        self._judging = judging

    def record(self, session_id: str, turns: Sequence[tuple[Turn, Verdict | None]], *, closed: bool = False) -> int:
        """Commit the new turns of a conversation and the verdicts to keep; return how many were new.

        A new session is ended at once, because nobody continues it; with ``closed`` it gives no samples as a whole either.
        """
        now, added = self._database.clock(), 0
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO sessions (id, started_at, ended_at, closed_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (session_id, now, now, now if closed else None),
            )
            for turn, verdict in turns:
                if connection.execute("SELECT 1 FROM turns WHERE id = ?", (turn.id,)).fetchone() is not None:
                    continue
                added += 1
                self._turns.insert(connection, turn)
                text = None if verdict is None else json.dumps(verdict.to_dict())
                self._database.insert(connection, "logs", {"turn_id": turn.id, "verdict": text})
        return added

    def unscored_session(self) -> list[Turn]:
        """Return the unscored turns of the oldest conversation that has any, in order; empty if there is none."""
        rows = self._database.rows(
            "SELECT * FROM turns WHERE state = 'unscored' AND session_id ="
            " (SELECT session_id FROM turns WHERE state = 'unscored' ORDER BY number LIMIT 1) ORDER BY number"
        )
        return [decode_turn(row) for row in rows]

    def record_scores(self, outcomes: Sequence[tuple[Turn, ReplyScores | str]]) -> None:
        """Commit the outcome of each turn of a conversation: its scores, or the reason why there are none.

        A turn that was deleted meanwhile is skipped.
        """
        with self._database.transaction() as connection:
            for turn, outcome in outcomes:
                known = connection.execute("SELECT state FROM turns WHERE id = ?", (turn.id,)).fetchone()
                if known is None or known["state"] != "unscored":
                    continue
                if isinstance(outcome, str):
                    self._database.update_one(connection, "turns", turn.id, state="ended", reason=outcome)
                    continue
                scored = replace(
                    turn,
                    prompt_ids=outcome.prompt_ids,
                    response_ids=outcome.response_ids,
                    response_logprobs=outcome.log_probs,
                    weight_versions=[VersionSpan(outcome.version, 0, len(outcome.response_ids))],
                    response_topk=outcome.topk,
                    state="pending",
                    scored=True,
                )
                scored.validate()
                columns = encode_turn(scored)
                del columns["id"]
                self._database.update_one(connection, "turns", turn.id, **columns)

    def score_again(self, sample_id: int) -> bool:
        """Take back a claimed sample of a scored turn with the turn's others, and let the turn be scored again.

        Returns:
            Whether the sample is out of its batch. It stays in it if another batch has a sample of the same turn, which the
            turn would give once more.
        """
        with self._database.transaction() as connection:
            row = connection.execute(
                "SELECT turn_id, state, rollout_id FROM samples WHERE id = ?", (sample_id,)
            ).fetchone()
            if row is None or row["state"] == "dropped":
                return True  # deleted meanwhile, or taken back with another sample of its turn
            turn_id = row["turn_id"]
            used = connection.execute(
                "SELECT 1 FROM samples WHERE turn_id = ? AND origin = 'live' AND state IN ('leased', 'trained')"
                " AND rollout_id <> ? LIMIT 1",
                (turn_id, row["rollout_id"]),
            ).fetchone()
            if used is not None:
                return False
            unused = connection.execute(
                "SELECT id FROM samples WHERE turn_id = ? AND origin = 'live' AND state IN ('ready', 'leased')",
                (turn_id,),
            ).fetchall()
            for sample in unused:
                # Without a rollout id no restored checkpoint makes it ready again, beside its successor.
                gone = {"state": "dropped", "reason": RESCORED, "rollout_id": None, "baseline_role": None}
                self._database.update_one(connection, "samples", sample["id"], **gone)
            verdict = connection.execute("SELECT verdict FROM verdicts WHERE turn_id = ?", (turn_id,)).fetchone()
            connection.execute(
                "INSERT INTO logs (turn_id, verdict) VALUES (?, ?) ON CONFLICT DO UPDATE SET verdict = excluded.verdict",
                (turn_id, verdict["verdict"]),
            )
            connection.execute("DELETE FROM verdicts WHERE turn_id = ?", (turn_id,))
            self._database.update_one(connection, "turns", turn_id, state="unscored", reason=None)
            # What its session gave as a whole went with the turn's samples, so the session is asked again.
            connection.execute(
                "UPDATE sessions SET closed_at = NULL, reopened_at = COALESCE(reopened_at, ?)"
                " WHERE id = (SELECT session_id FROM turns WHERE id = ?) AND closed_at IS NOT NULL",
                (self._database.clock(), turn_id),
            )
        return True

    def holds_unscored(self) -> bool:
        """Return whether any turn waits for scores."""
        return bool(self._database.rows("SELECT 1 FROM turns WHERE state = 'unscored' LIMIT 1"))

    def batches_taken(self) -> int:
        """Return how many batches were handed out; the last one's step may still be under way."""
        rows = self._database.rows(
            "SELECT COUNT(DISTINCT rollout_id) AS n FROM samples WHERE state IN ('leased', 'trained')"
        )
        return rows[0]["n"]

    def nothing_to_come(self) -> bool:
        """Return whether no sample can follow from what is in the ledger: all is scored, judged and closed."""
        waits = self._database.rows("SELECT 1 FROM turns WHERE state IN ('unscored', 'pending') LIMIT 1")
        return not waits and not self._judging.finished_sessions(1)

    def ahead_of_training(self) -> int:
        """Return how many turns wait for the judge, and rollouts, without practice, for a batch."""
        rows = self._database.rows(
            f"SELECT (SELECT COUNT(*) FROM turns WHERE state = 'pending') + (SELECT COUNT(DISTINCT {ROLLOUT})"
            " FROM samples WHERE state = 'ready' AND origin = 'live') AS n"
        )
        return rows[0]["n"]
