"""Turns as the gateway writes them: the reply, what followed it, and the pictures that its prompt had.

Guarantees: a turn of a session that was deleted after the request arrived is not recorded. A turn with a next state is
pending until it is judged. A picture is committed with the first turn that saw it, and deleted with the last one, in the
same transaction; the files lie in the ledger itself, so they have its mode, its walls between owners and its erasure.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from groundwork.chat_messages import Message
from openclaw.ledger.codec import (
    decode_turn,
    encode_turn,
    pack_ids,
    unpack_ids,
)
from openclaw.ledger.database import Database
from openclaw.ledger.exceptions import (
    TransitionError,
    UnknownRecordError,
)
from openclaw.ledger.lessons import note_lessons
from openclaw.ledger.records import (
    ABORTED,
    EPISODE,
    OVER,
    PROBE,
    SeenPicture,
    Signal,
    Turn,
    choice_of,
)
from openclaw.ledger.responses import keep_response
from openclaw.ledger.usage import FORGOTTEN, add_usage, has_usage
from openclaw.messages.signals import WEAK
from openclaw.owners import episode_of, owner_of

FIRST_NEXT_STATE = ("waiting", "ended")
"""States of a turn that can get its next state; only feedback makes a judged turn pending again."""
SESSION_DIGEST_BYTES = 16
REGENERATED = "regenerated"
ONLY_WEAK = (
    "(signal = 'feedback' AND state IN ('pending', 'judged') AND NOT EXISTS (SELECT 1 FROM feedback WHERE turn_id = turns.id"
    f" AND NOT (COALESCE(action, '') IN {WEAK} AND COALESCE(thumbs, score, NULLIF(text, '')) IS NULL)))"
)
"""SQL: whether nothing but weak actions gave a turn its next state; the rule of `openclaw.ledger.feedback.is_weak`."""
SUPERSEDED = "superseded"
"""Why a sample was dropped: feedback on its turn, or another next state, arrived before a step used it."""
NO_PICTURE = "no_picture"
"""Why a turn or a sample is not trained: this ledger lacks a picture that its prompt has."""
_UNUSED = "NOT EXISTS (SELECT 1 FROM turn_pictures WHERE turn_pictures.sha256 = pictures.sha256)"


@dataclass(frozen=True)
class RecordedReply:
    """The tokens of a turn's reply; ``prompt_end`` has the last ids of its prompt."""

    conversation: bytes
    response_ids: list[int]
    prompt_end: list[int]


def session_digest(session_id: str) -> bytes:
    """Return what stands for a session id after it was forgotten."""
    return blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=SESSION_DIGEST_BYTES).digest()


class Turns:
    """Records turns and what follows them; finds a turn by its id or its conversation.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from lab.testkit.ledger_records import make_turn
        >>> from openclaw.ledger.store import Ledger
        >>> folder = TemporaryDirectory()
        >>> ledger = Ledger(f"{folder.name}/ledger.sqlite")
        >>> _ = ledger.turns.record(make_turn("chatcmpl-1"))
        >>> ledger.turns.get("chatcmpl-1").state
        'waiting'
        >>> _ = ledger.turns.record_next_state("chatcmpl-1", [{"role": "user", "content": "thanks"}], at=3.0)
        >>> ledger.turns.get("chatcmpl-1").state
        'pending'
        >>> ledger.close()
        >>> folder.cleanup()
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, turn: Turn) -> Turn | None:
        """Commit a finished turn: ``waiting``, or ``excluded`` with its reason (given, ``side`` or ``aborted``).

        A turn of an episode is always excluded: its samples are made when the episode gets its reward. This resumes a
        session that had ended.

        Returns:
            The turn with its state and reason; None, with nothing written but its tokens, if its session was deleted after
            the request arrived.
        """
        turn.validate()
        episode = episode_of(owner_of(turn.session_id))
        turn = turn.redacted(self._database.redaction)
        with self._database.transaction() as connection:
            forgotten = connection.execute(
                "SELECT 1 FROM forgotten_sessions WHERE session = ? AND forgotten_at >= ?",
                (session_digest(turn.session_id), turn.created_at),
            ).fetchone()
            if turn.spent is not None:
                owner = owner_of(turn.session_id)
                lives = forgotten is None or has_usage(connection, owner)
                add_usage(connection, owner if lives else FORGOTTEN, turn.finished_at, turn.spent)
            reason = turn.never_trained if turn.reason is None else turn.reason
            if episode is not None:
                reason = turn_reason(connection, episode, turn)
                if reason is None:
                    return None
            turn = replace(turn, state="waiting" if reason is None else "excluded", reason=reason)
            if forgotten is not None:
                return None
            connection.execute(
                "INSERT INTO sessions (id, started_at) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET ended_at = NULL",
                (turn.session_id, turn.created_at),
            )
            self.insert(connection, turn)
        return turn

    def record_next_state(
        self, turn_id: str, messages: Sequence[Message], at: float, signal: Signal = "next_state"
    ) -> None:
        """Commit a turn's next state; the turn becomes pending.

        It takes the place of weak actions (`openclaw.messages.signals`), which counted because nothing else had followed.

        Args:
            turn_id: the turn.
            messages: the next state.
            at: when it arrived, seconds since the epoch.
            signal: its kind.

        Raises:
            TransitionError: if the turn already has a next state or is excluded, or a step has used its samples.
            UnknownRecordError: if the ledger does not hold it.
        """
        with self._database.transaction() as connection:
            row = connection.execute(
                f"SELECT state, {ONLY_WEAK} AS weak FROM turns WHERE id = ?", (turn_id,)
            ).fetchone()
            if row is not None and row["weak"] and (row["state"] == "pending" or self.take_back(connection, turn_id)):
                columns = self._next_state_columns(messages, at, signal)
                self._database.update_one(connection, "turns", turn_id, **columns, not_before=0.0)
                return
            if row is not None and row["state"] not in FIRST_NEXT_STATE:
                raise TransitionError(f"turns {turn_id}: {row['state']} -> pending is not allowed")
            self.set_next_state(connection, turn_id, messages, at, signal)

    def replace_next_state(self, turn_id: str, messages: Sequence[Message], at: float) -> bool:
        """Commit another next state than a turn had; the turn is judged again.

        Args:
            turn_id: the turn.
            messages: the next state.
            at: when it arrived, seconds since the epoch.

        Returns:
            False, with nothing written, if a step has used the turn's samples.

        Raises:
            TransitionError: if the turn has no next state from the conversation, but for example feedback.
            UnknownRecordError: if the ledger does not hold it.
        """
        with self._database.transaction() as connection:
            row = connection.execute("SELECT state, signal FROM turns WHERE id = ?", (turn_id,)).fetchone()
            if row is None:
                raise UnknownRecordError(f"{self._database.path} holds no turn {turn_id!r}")
            if row["state"] not in ("pending", "judged") or row["signal"] == "feedback":
                raise TransitionError(f"turns {turn_id}: {row['state']} ({row['signal']}) has no next state to replace")
            if row["state"] == "judged" and not self.take_back(connection, turn_id):
                return False
            columns = self._next_state_columns(messages, at, "next_state")
            self._database.update_one(connection, "turns", turn_id, **columns, not_before=0.0)
        return True

    def mark_regenerated(self, turn_id: str) -> None:
        """Mark a turn whose reply the user had regenerated; it keeps waiting for a next state."""
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE turns SET signal = ?, reason = ? WHERE id = ? AND state IN ('waiting', 'ended')",
                (REGENERATED, REGENERATED, turn_id),
            )

    def note_lost(self, turn_ids: Sequence[str]) -> None:
        """Exclude turns of episodes whose replies their clients did not get, and asked for again."""
        with self._database.transaction() as connection:
            for turn_id in turn_ids:
                connection.execute(
                    "UPDATE turns SET reason = ? WHERE id = ? AND reason = ?", (ABORTED, turn_id, EPISODE)
                )

    def regenerated(self, session_id: str) -> list[str]:
        """Return the ids of a session's regenerated turns without a next state."""
        rows = self._database.rows(
            "SELECT id FROM turns INDEXED BY turns_by_session_state"
            " WHERE session_id = ? AND signal = ? AND state IN ('waiting', 'ended') ORDER BY number",
            (session_id, REGENERATED),
        )
        return [row["id"] for row in rows]

    def get(self, turn_id: str) -> Turn:
        """Return one turn.

        Raises:
            UnknownRecordError: when the ledger does not hold it.
        """
        return decode_turn(self._database.turn_row(turn_id))

    def gave_sample_before(self, turn: Turn) -> bool:
        """Return whether the same reply to the same conversation already gave a sample in the turn's session, or is a probe.

        A sample in quarantine counts, because it may be released.
        """
        rows = self._database.rows(
            "SELECT 1 FROM turns LEFT JOIN samples ON samples.turn_id = turns.id AND samples.origin = 'live'"
            " WHERE conversation = ? AND session_id = ?"
            " AND turns.id <> ? AND (samples.state <> 'dropped' OR samples.reason = 'quarantine'"
            " OR turns.state = 'judged' AND turns.reason = 'probe') LIMIT 1",
            (turn.conversation, turn.session_id, turn.id),
        )
        return bool(rows)

    def choices(self, turn_id: str) -> int:
        """Return how many choices the request of a turn asked for: its ``n``.

        The gateway records the last choice first, so the highest number is there before any choice can be judged.
        """
        request, number = choice_of(turn_id)
        rows = self._database.rows("SELECT id FROM turns WHERE id > ? AND id < ?", (f"{request}.", f"{request}/"))
        others = [choice_of(row["id"]) for row in rows]
        return 1 + max((k for other, k in others if other == request), default=number)

    def session_of(self, turn_id: str) -> str:
        """Return the session of a turn.

        Raises:
            UnknownRecordError: if the ledger has no such turn.
        """
        return self._database.turn_row(turn_id, "session_id")["session_id"]

    def recorded_replies(self, digests: Sequence[bytes], prompt_end: int) -> list[RecordedReply]:
        """Return the newest reply of each conversation in ``digests`` that has one with ids.

        Args:
            digests: of conversations.
            prompt_end: number of ids from the end of the prompt.
        """
        replies: list[RecordedReply] = []
        for digest in digests:
            for row in self._database.rows(
                "SELECT response_ids, substr(prompt_ids, ?) AS prompt_end FROM turns"
                " WHERE conversation = ? AND length(response_ids) > 0 ORDER BY number DESC LIMIT 1",
                (-prompt_end * len(pack_ids([0])), digest),
            ):
                ids, end = unpack_ids(row["response_ids"]), unpack_ids(row["prompt_end"])
                replies.append(RecordedReply(digest, ids, end))
        return replies

    def insert(self, connection: sqlite3.Connection, turn: Turn) -> None:
        """Insert a turn and its pictures as they are, inside a transaction."""
        self._database.insert(connection, "turns", encode_turn(turn))
        store_pictures(connection, turn.id, turn.pictures)
        if turn.lessons:
            note_lessons(connection, turn.id, turn.lessons, turn.finished_at)
        if turn.kept is not None:
            keep_response(connection, turn.id, turn.kept)

    def set_next_state(
        self, connection: sqlite3.Connection, turn_id: str, messages: Sequence[Message], at: float, signal: Signal
    ) -> None:
        """Make a turn pending with its next state, inside a transaction."""
        columns = self._next_state_columns(messages, at, signal)
        self._database.update_one(connection, "turns", turn_id, state="pending", reason=None, **columns)

    def _next_state_columns(self, messages: Sequence[Message], at: float, signal: Signal) -> dict[str, Any]:
        if self._database.redaction is not None:
            messages = self._database.redaction.messages(messages)
        return {"next_state": json.dumps(list(messages)), "next_state_at": at, "signal": signal}

    def take_back(self, connection: sqlite3.Connection, turn_id: str, why: str = SUPERSEDED) -> bool:
        """Make a judged turn pending again, inside a transaction, if no step has used its samples; return whether it is."""
        samples = connection.execute(
            "SELECT id, state, rollout_id FROM samples WHERE turn_id = ? AND origin = 'live'", (turn_id,)
        ).fetchall()
        if any(sample["state"] in ("leased", "trained") for sample in samples):
            return False
        # Their verdict no longer counts, and neither a release nor a restored checkpoint brings them back beside new ones.
        gone = {"reason": why, "baseline_role": None, "rollout_id": None}
        for sample in samples:
            if sample["state"] == "ready":
                self._database.update_one(connection, "samples", sample["id"], state="dropped", **gone)
            elif sample["rollout_id"] is not None:
                self._database.update_one(connection, "samples", sample["id"], **gone)
        connection.execute("DELETE FROM verdicts WHERE turn_id = ?", (turn_id,))
        (turn,) = connection.execute("SELECT reason FROM turns WHERE id = ?", (turn_id,)).fetchall()
        stays = PROBE if turn["reason"] == PROBE else None
        self._database.update_one(connection, "turns", turn_id, state="pending", reason=stays)
        return True


class Pictures:
    """The pictures that turns saw: each file once, under its digest, and where each turn's prompt has it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, turn_id: str) -> list[SeenPicture]:
        """Return the pictures of a turn's prompt, in order, with their files."""
        rows = self._database.rows(
            "SELECT sha256, start, tokens, png FROM turn_pictures JOIN pictures USING (sha256)"
            " WHERE turn_id = ? ORDER BY start",
            (turn_id,),
        )
        return [SeenPicture(row["sha256"], row["start"], row["tokens"], row["png"]) for row in rows]

    def places(self, turn_ids: Sequence[str]) -> dict[str, tuple[SeenPicture, ...]]:
        """Return the pictures of the turns that saw any, without their files."""
        places: dict[str, list[SeenPicture]] = {}
        for turn_id in turn_ids:
            for row in self._database.rows("SELECT * FROM turn_pictures WHERE turn_id = ? ORDER BY start", (turn_id,)):
                places.setdefault(turn_id, []).append(SeenPicture(row["sha256"], row["start"], row["tokens"]))
        return {turn_id: tuple(place) for turn_id, place in places.items()}

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield digest and file of each picture."""
        for row in self._database.rows("SELECT sha256 FROM pictures ORDER BY rowid"):
            for result in self._database.rows("SELECT png FROM pictures WHERE sha256 = ?", (row["sha256"],)):
                yield row["sha256"], result["png"]


def store_pictures(connection: sqlite3.Connection, turn_id: str, pictures: Sequence[SeenPicture]) -> None:
    """Store the pictures of a new turn inside a transaction."""
    for picture in pictures:
        connection.execute(
            "INSERT INTO pictures (sha256, png) VALUES (?, ?) ON CONFLICT DO NOTHING", (picture.sha256, picture.png)
        )
        connection.execute(
            "INSERT INTO turn_pictures (turn_id, start, tokens, sha256) VALUES (?, ?, ?, ?)",
            (turn_id, picture.start, picture.tokens, picture.sha256),
        )


def copy_pictures(source: Pictures, connection: sqlite3.Connection, turn_id: str, new_id: str) -> None:
    """Store the pictures of another ledger's turn as those of ``new_id`` inside a transaction."""
    store_pictures(connection, new_id, source.of(turn_id))


def forget_pictures(connection: sqlite3.Connection, session_id: str) -> None:
    """Delete what a session's turns saw inside a transaction; a picture that other turns saw stays theirs."""
    of_session = "turn_id IN (SELECT id FROM turns WHERE session_id = ?)"
    seen = connection.execute(f"SELECT DISTINCT sha256 FROM turn_pictures WHERE {of_session}", (session_id,)).fetchall()
    connection.execute(f"DELETE FROM turn_pictures WHERE {of_session}", (session_id,))
    connection.executemany(f"DELETE FROM pictures WHERE sha256 = ? AND {_UNUSED}", [(row["sha256"],) for row in seen])


def turn_reason(connection: sqlite3.Connection, episode_id: str, turn: Turn) -> str | None:
    """Return why a new turn of an episode is not judged; None if the episode was deleted, so that nothing is recorded.

    Args:
        connection: in a transaction.
        episode_id: of the turn's owner; a collector's ledger has only the turns of an episode.
        turn: the turn with the reason that excludes it in any session, or None.
    """
    row = connection.execute("SELECT state FROM episodes WHERE id = ?", (episode_id,)).fetchone()
    state = "open" if row is None else row["state"]
    if state == "deleted":
        return None
    if state != "open":
        return OVER
    return turn.reason or (ABORTED if turn.finish_reason == "abort" else EPISODE)
