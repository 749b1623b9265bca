"""Moves turns to another ledger: copies those of a run with verdicts and samples, or merges what changed elsewhere.

A copied row (`copy_run`) has the bits of its source: ids, log-probabilities, verdict, the teacher's numbers, rewards and
baselines, and its pictures. A sample that a step had used is ready again; one that had been dropped stays dropped. The
samples come in the order of their batches, so the same batch size gives the same batches (`Samples.claim` hands out the oldest
first). The source is only read. Copying again adds nothing: a copy keeps the turn's id. One transaction copies all.

A changed turn (`Transfer`) travels as JSON values. Merging it again is a no-op, so a reader may request it repeatedly. Ids and
log-probabilities arrive unchanged. Verdicts, samples and steps are not transferred: the receiver judges. Pictures are not
either, so a turn that saw one is not trained there (`NO_PICTURE`). Neither way takes a person's lessons along: they stay in the
ledger whose server the person talks to, and so does practice. A turn keeps its prompt with lessons and its plain prompt.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from groundwork.chat_messages import pictures_in
from openclaw.ledger.codec import decode_feedback, decode_turn, decode_verdict, encode_turn
from openclaw.ledger.database import BUSY_TIMEOUT_SECONDS, Database
from openclaw.ledger.feedback import FEEDBACK_OF_TURN, FeedbackLog, as_next_state
from openclaw.ledger.records import (
    EPISODE,
    REDACTED,
    Feedback,
    PlainPart,
    TopK,
    Turn,
    VersionSpan,
    suffixed,
    turn_of_pass,
)
from openclaw.ledger.sessions import Sessions
from openclaw.ledger.turns import NO_PICTURE, Turns, copy_pictures
from openclaw.owners import prefixes

_CHANGED = (
    "MAX(turns.finished_at, COALESCE(turns.next_state_at, 0), COALESCE(sessions.ended_at, 0),"
    " COALESCE((SELECT MAX(created_at) FROM feedback WHERE feedback.turn_id = turns.id), 0))"
)


@dataclass(frozen=True)
class ChangedTurn:
    """A changed turn, for another ledger.

    Attributes:
        turn: as it is.
        feedback: on the turn, oldest first.
        session_ended_at: when its session ended, or None while it is open.
        changed_at: time of the last change of any of this, seconds since the epoch.
        number: of the turn in its ledger.
    """

    turn: Turn
    feedback: tuple[Feedback, ...]
    session_ended_at: float | None
    changed_at: float
    number: int

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        values = asdict(self)
        for name in ("conversation", "pictures", "lessons"):
            del values["turn"][name]
        if self.turn.plain is None:
            del values["turn"]["plain"]  # a collector of an older version does not know it
        return values

    @staticmethod
    def from_dict(values: dict[str, Any]) -> ChangedTurn:
        """Return what `to_dict` described.

        Raises:
            KeyError, TypeError: for anything else.
        """
        turn: dict[str, Any] = {
            **values["turn"],
            "response_topk": None if (topk := values["turn"].get("response_topk")) is None else TopK(**topk),
            "plain": None if (plain := values["turn"].get("plain")) is None else _plain_part(plain),
            "weight_versions": [VersionSpan(**span) for span in values["turn"]["weight_versions"]],
        }
        feedback = tuple(Feedback(**item) for item in values["feedback"])
        return ChangedTurn(Turn(**turn), feedback, values["session_ended_at"], values["changed_at"], values["number"])


class Transfer:
    """What the rollouts route gives to a collector, and how a collector takes it in."""

    def __init__(self, database: Database, turns: Turns, feedback: FeedbackLog, sessions: Sessions) -> None:
        self._database = database
        self._turns = turns
        self._feedback = feedback
        self._sessions = sessions

    def changed(self, since: float, after: int, limit: int, owner: str | None = None) -> list[ChangedTurn]:
        """Return up to ``limit`` turns changed after ``since``, or at ``since`` with a number above ``after``, oldest first.

        Only those of ``owner``, which is not `LOCAL`, and its children; of all owners if it is None.
        """
        own, children = ("", "") if owner is None else prefixes(owner)
        # The query reads the whole table; a connection of its own keeps it from blocking turns. In one transaction, a
        # session that is deleted meanwhile is returned complete.
        with (
            self._database.named_errors(),
            closing(sqlite3.connect(self._database.path, timeout=BUSY_TIMEOUT_SECONDS)) as reader,
        ):
            reader.row_factory = sqlite3.Row
            reader.execute("BEGIN")
            rows = reader.execute(
                f"SELECT turns.number, turns.id, sessions.ended_at, {_CHANGED} AS changed_at FROM turns"
                " JOIN sessions ON sessions.id = turns.session_id"
                f" WHERE ({_CHANGED} > ? OR ({_CHANGED} = ? AND turns.number > ?))"
                " AND (substr(sessions.id, 1, ?) = ? OR substr(sessions.id, 1, ?) = ?)"
                " ORDER BY changed_at, turns.number LIMIT ?",
                (since, since, after, len(own), own, len(children), children, limit),
            ).fetchall()
            return [_changed(reader, row) for row in rows]

    def merge(self, changed: ChangedTurn) -> bool:
        """Merge a turn of another ledger; return whether anything was new.

        A turn of a session that was deleted here is skipped.
        """
        turn = changed.turn
        with self._database.transaction() as connection:
            known = connection.execute("SELECT state FROM turns WHERE id = ?", (turn.id,)).fetchone()
            if known is None:
                reason = turn.reason if turn.state == "excluded" else NO_PICTURE if pictures_in(turn.messages) else None
                fresh = replace(turn, state="waiting", reason=reason, next_state=None, next_state_at=None, signal=None)
                if self._turns.record(fresh) is None:
                    return False
            state = connection.execute("SELECT state FROM turns WHERE id = ?", (turn.id,)).fetchone()["state"]
            news = known is None
            if state in ("waiting", "ended") and turn.next_state and turn.signal != "feedback":
                self._turns.record_next_state(
                    turn.id, turn.next_state, turn.next_state_at or 0.0, turn.signal or "next_state"
                )
                news = True
            for item in changed.feedback[len(self._feedback.of(turn.id)) :]:
                self._feedback.record(item, as_next_state(item))
                news = True
            if changed.session_ended_at is not None:
                self._sessions.end(turn.session_id, changed.session_ended_at)
        return news


def _plain_part(values: Mapping[str, Any]) -> PlainPart:
    return PlainPart(values["start"], values["end"], tuple(values["ids"]))


def _changed(reader: sqlite3.Connection, row: sqlite3.Row) -> ChangedTurn:
    turn = reader.execute("SELECT * FROM turns WHERE number = ?", (row["number"],)).fetchone()
    feedback = reader.execute(FEEDBACK_OF_TURN, (row["id"],)).fetchall()
    given = tuple(decode_feedback(item) for item in feedback)
    return ChangedTurn(decode_turn(turn), given, row["ended_at"], row["changed_at"], row["number"])


if TYPE_CHECKING:
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
    rows = source.database.rows(
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
        [session] = source.database.rows("SELECT * FROM sessions WHERE id = ?", (session_id,))
        ended = session["ended_at"] or target.database.clock()
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
            copy_pictures(source.pictures, connection, row["id"], turn_id)
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
    if target.database.redaction is not None:
        turn = decode_turn(row)
        redacted = turn.redacted(target.database.redaction)
        if redacted != turn:
            values |= {**encode_turn(redacted), "id": turn_id, "session_id": session_id}
            if redacted.reason == REDACTED:
                values |= {"state": "excluded", "reason": REDACTED}
    verdict = source.database.rows("SELECT * FROM verdicts WHERE turn_id = ?", (row["id"],))
    if not judge_again and any(
        said.redacted(target.database.redaction) != said for said in map(decode_verdict, verdict)
    ):
        values |= {"state": "excluded", "reason": REDACTED}  # its samples may have the judge's words, too
    state, reason = values["state"], values["reason"]
    if state == "excluded":
        target.database.insert(connection, "turns", values)
        return reason or MERGED
    if state == "waiting":
        state, reason = "ended", "no_next_state"
    if state != "judged":
        verdict = []
    if state == "judged" and judge_again:
        state, reason, verdict = "pending", None, []
    path = {"ended": ["ended"], "pending": ["pending"], "judged": ["pending", "judged"]}[state]
    fresh = {"judge_attempts": 0, "judge_error": None, "not_before": 0.0, "reason": None}
    target.database.insert(connection, "turns", {**values, **fresh, "state": "waiting"})
    for step in path:
        target.database.update_one(connection, "turns", turn_id, state=step)
    target.database.update_one(connection, "turns", turn_id, reason=reason)
    for item in source.database.rows("SELECT * FROM feedback WHERE turn_id = ? ORDER BY id", (row["id"],)):
        given = {**dict(item), "turn_id": turn_id}
        del given["id"]
        if target.database.redaction is not None and given["text"] is not None:
            given["text"] = target.database.redaction.text(given["text"])
        target.database.insert(connection, "feedback", given)
    for item in verdict:
        target.database.insert(connection, "verdicts", {**dict(item), "turn_id": turn_id})
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
    """Copy the samples of new turns in the order of their batches, those without a batch last; practice stays behind."""
    segments: dict[int, int] = {}
    for row in source.database.rows(f"SELECT * FROM samples WHERE origin = 'live' ORDER BY {ORDER}, id"):
        if row["turn_id"] not in new or (judge_again and row["episode"] is None):
            continue
        turn_id = turn_of_pass(row["turn_id"], number)
        held = json.loads(row["sample"])["metadata"].get("turns", [row["turn_id"]])
        if any(_is_redacted(connection, turn_of_pass(item, number)) for item in held):
            continue
        dropped = row["state"] == "dropped"
        values = {**dict(row), "turn_id": turn_id, "state": "ready", "rollout_id": None, "reason": None}
        values["metered_on"] = None
        if values["episode"] is not None:
            values |= _of_pass(values, number)
        del values["id"]
        sample_id = target.database.insert(connection, "samples", values)
        segments[row["id"]] = sample_id
        if dropped:
            target.database.update_one(connection, "samples", sample_id, state="dropped")
            target.database.update_one(
                connection, "samples", sample_id, reason=row["reason"]
            )  # not metered: another run's
        result.samples[row["reason"] if dropped else "ready"] += 1
    for row in source.database.rows("SELECT id, segment FROM turns WHERE segment IS NOT NULL"):
        if row["id"] in new and row["segment"] in segments:
            target.database.update_one(
                connection, "turns", turn_of_pass(row["id"], number), segment=segments[row["segment"]]
            )


def _is_redacted(connection: sqlite3.Connection, turn_id: str) -> bool:
    row = connection.execute("SELECT reason FROM turns WHERE id = ?", (turn_id,)).fetchone()
    return row is not None and row["reason"] == REDACTED


def _of_pass(values: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the columns of a sample of an episode that name it: each pass is a rollout of its own."""
    if number == 1:
        return {}
    name, sample = suffixed(values["episode"], number), json.loads(values["sample"])
    sample["metadata"] |= {EPISODE: name}
    return {"episode": name, "sample": json.dumps(sample)}
