"""Episodes: an agent's runs, from the key to the reward. `openclaw.ledger.episode_groups` makes their samples.

States: open -> closed (it has its reward) -> settled (its samples are made, or there is a reason for none); an episode that
cannot be rewarded is settled at once. Any state -> deleted, which leaves a row without contents.

Guarantees: of an episode's key only the SHA-256 is stored, until the episode ends. An episode gets one reward; the same
one again changes nothing, another one is refused. A turn that is recorded after the end of its episode is in no sample
(`openclaw.ledger.turns`), so the turns of a closed episode stay as they are.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from groundwork.chat_messages import pictures_in
from openclaw.ledger.codec import decode_turn
from openclaw.ledger.episode_records import (
    ABORTED,
    EPISODE,
    EXPIRED,
    INFRA_ERROR,
    NO_REWARD,
    Episode,
    EpisodeCounts,
    EpisodeStatus,
    Settled,
)
from openclaw.ledger.exceptions import EpisodeConflictError, UnknownRecordError, UnknownTurnError
from openclaw.ledger.pictures import PictureQueries
from openclaw.ledger.records import Turn


class EpisodeQueries(PictureQueries):
    """The ledger's queries for the episode routes and the inspect command."""

    def create_episode(self, episode: Episode, most_open: int) -> Episode | None:
        """Commit a new episode; or, if it is open already, its new key.

        Args:
            episode: the episode, open.
            most_open: how many open episodes its owner may have, this one included.

        Returns:
            None, or the open episode of this id with its new key.

        Raises:
            EpisodeConflictError: its owner has too many open episodes, its group is full, the group's other episodes
                have another task or size, or the id is of an episode that has ended or is another one.
        """
        if self.redaction is not None:
            [told] = self.redaction.messages([{"task": episode.task, "metadata": dict(episode.metadata)}])
            episode = replace(episode, task=told["task"], metadata=told["metadata"])
        with self.transaction() as connection:
            if (earlier := _same(connection, episode)) is not None:
                self.update_one(connection, "episodes", episode.id, key_digest=episode.key_digest)
                return earlier
            opened = connection.execute(
                "SELECT COUNT(*) FROM episodes WHERE state = 'open' AND owner = ?", (episode.owner,)
            ).fetchone()[0]
            if opened >= most_open:
                raise EpisodeConflictError(
                    f"{opened} episodes are open, the most that one key may have; reward or delete some of them first"
                )
            if episode.group is not None:
                _check_group(episode, members(connection, episode))
            columns = {
                "id": episode.id,
                "owner": episode.owner,
                "key_name": episode.key_name,
                "key_digest": episode.key_digest,
                "task": episode.task,
                "group_name": episode.group,
                "group_size": episode.group_size,
                "metadata": json.dumps(dict(episode.metadata)),
                "created_at": episode.created_at,
                "expires_at": episode.expires_at,
                "state": "open",
            }
            marks = ", ".join("?" for _ in columns)
            connection.execute(f"INSERT INTO episodes ({', '.join(columns)}) VALUES ({marks})", tuple(columns.values()))
        return None

    def episode(self, episode_id: str, *, deleted: bool = False) -> Episode:
        """Return one episode; ``deleted``: also one whose contents were deleted.

        Raises:
            UnknownRecordError: if there is none.
        """
        found = self.rows("SELECT * FROM episodes WHERE id = ? AND (? OR state != 'deleted')", (episode_id, deleted))
        if not found:
            raise UnknownRecordError(f"{self.path} holds no episode {episode_id!r}")
        return Episode.of(found[0])

    def episodes(self) -> list[Episode]:
        """Return all episodes that were not deleted, oldest first."""
        return [Episode.of(row) for row in self.rows("SELECT * FROM episodes WHERE state != 'deleted' ORDER BY number")]

    def open_episodes(self) -> list[Episode]:
        """Return the open episodes, oldest first."""
        return [Episode.of(row) for row in self.rows("SELECT * FROM episodes WHERE state = 'open' ORDER BY number")]

    def close_episode(
        self, episode_id: str, status: EpisodeStatus, reward: float | None, scores: Mapping[str, float] | None = None
    ) -> bool:
        """Commit how an episode ended; return False if this is known already.

        Args:
            episode_id: the episode.
            status: how it ended.
            reward: from -1 to 1, or None.
            scores: of some of its turns, by turn id, from -1 to 1.

        Raises:
            UnknownRecordError: if there is no such episode.
            UnknownTurnError: if it is open and has no turn with one of the ids in ``scores``.
            EpisodeConflictError: if it has ended in another way.
        """
        given = dict(scores or {})
        with self.transaction() as connection:
            episode = self.episode(episode_id)
            if episode.state != "open":
                if (episode.status, episode.reward, episode.scores) == (status, reward, given):
                    return False
                raise EpisodeConflictError(
                    f"the episode has ended with status {episode.status!r}, reward {episode.reward} and "
                    f"{len(episode.scores)} scores; an episode gets one reward, so create another episode"
                )
            _check_scored(connection, episode, given)
            connection.execute(
                "UPDATE episodes SET state = 'closed', status = ?, reward = ?, scores = ?, closed_at = ?, key_digest = NULL"
                " WHERE id = ?",
                (status, reward, json.dumps(given) if given else None, self.clock(), episode_id),
            )
            unusable = {INFRA_ERROR: INFRA_ERROR, EXPIRED: EXPIRED}.get(status, NO_REWARD if reward is None else None)
            if unusable is not None:
                settle(connection, episode, Settled(episode_id, unusable), self.clock())
        return True

    def group(self, owner: str, name: str) -> list[Episode]:
        """Return an owner's episodes of a group that were not deleted, oldest first."""
        found = self.rows("SELECT * FROM episodes WHERE owner = ? AND group_name = ? ORDER BY number", (owner, name))
        return [Episode.of(row) for row in found]

    def expire_episodes(self) -> list[Settled]:
        """Close the open episodes whose time is over, without reward; return them."""
        now = self.clock()
        late = self.rows("SELECT id FROM episodes WHERE state = 'open' AND expires_at <= ?", (now,))
        return [Settled(row["id"], EXPIRED) for row in late if self._expire(row["id"])]

    def move_expiry(self, seconds: float) -> None:
        """Let the episodes that have not settled expire later by ``seconds``, because the clock has jumped by them."""
        with self.transaction() as connection:
            connection.execute(
                "UPDATE episodes SET expires_at = expires_at + ? WHERE state IN ('open', 'closed')", (seconds,)
            )

    def _expire(self, episode_id: str) -> bool:
        try:
            return self.close_episode(episode_id, EXPIRED, None)
        except (EpisodeConflictError, UnknownRecordError):  # it was rewarded or deleted a moment ago
            return False

    def episode_turns(self, episode: Episode) -> list[Turn]:
        """Return an episode's turns in the order in which they were recorded, with the places of their pictures."""
        found = self.rows(
            "SELECT * FROM turns WHERE session_id >= ? AND session_id < ? ORDER BY number", episode.session_range
        )
        turns = [decode_turn(row) for row in found]
        seen = self.picture_places([turn.id for turn in turns if pictures_in(turn.messages)])
        return [replace(turn, pictures=seen.get(turn.id, ())) for turn in turns]

    def episode_sessions(self, episode: Episode) -> list[str]:
        """Return the stored ids of an episode's sessions, in order."""
        found = self.rows("SELECT id FROM sessions WHERE id >= ? AND id < ? ORDER BY id", episode.session_range)
        return [row["id"] for row in found]

    def episode_counts(self, episode: Episode) -> EpisodeCounts:
        """Return what an episode has so far."""
        found = self.rows(
            "SELECT reason, finish_reason, length(prompt_ids) / 4 AS prompt, length(response_ids) / 4 AS reply,"
            " weight_versions FROM turns WHERE session_id >= ? AND session_id < ? ORDER BY number",
            episode.session_range,
        )
        samples = self.rows(
            "SELECT state, COUNT(*) AS n FROM samples WHERE episode = ? GROUP BY state ORDER BY state", (episode.id,)
        )
        versions = [span["version"] for row in found for span in json.loads(row["weight_versions"])]
        return EpisodeCounts(
            turns=len(found),
            aborted=sum(row["finish_reason"] == "abort" for row in found),
            prompt_tokens=sum(row["prompt"] for row in found),
            generated_tokens=sum(row["reply"] for row in found),
            weight_versions=tuple(dict.fromkeys(versions)),
            reasons=dict(Counter(row["reason"] for row in found if row["reason"] not in (None, EPISODE))),
            samples={row["state"]: row["n"] for row in samples},
        )

    def delete_episode(self, episode_id: str) -> Episode:
        """Delete an episode's contents and key; its sessions are deleted with `openclaw.ledger.forget`.

        A reply that is under way is not recorded any more. Deleting it again returns it again, so that a caller who died
        before it deleted the sessions can go on.

        Raises:
            UnknownRecordError: if there is no such episode, or nothing of it is left.
        """
        with self.transaction() as connection:
            row = connection.execute("SELECT * FROM episodes WHERE id = ?", (episode_id,)).fetchone()
            if row is None or (row["state"] == "deleted" and not self.episode_sessions(Episode.of(row))):
                raise UnknownRecordError(f"{self.path} holds no episode {episode_id!r}")
            connection.execute(
                "UPDATE episodes SET state = 'deleted', task = '', metadata = '{}', group_name = NULL, key_digest = NULL,"
                " status = NULL, reward = NULL, scores = NULL, reason = NULL WHERE id = ?",
                (episode_id,),
            )
        return Episode.of(row)

    def delete_quiet_episodes(self, since: float) -> int:
        """Delete the contents of settled episodes that ended before ``since`` and have no session left; return their number."""
        found = self.rows("SELECT * FROM episodes WHERE state = 'settled' AND settled_at < ? ORDER BY number", (since,))
        quiet = [episode for episode in map(Episode.of, found) if not self.episode_sessions(episode)]
        for episode in quiet:
            self.delete_episode(episode.id)
        return len(quiet)


def _same(connection: sqlite3.Connection, episode: Episode) -> Episode | None:
    """Return the stored episode that a repeated request means, with the request's key; None for a new id.

    Raises:
        EpisodeConflictError: the id is of an episode that has ended or is another one.
    """
    row = connection.execute("SELECT * FROM episodes WHERE id = ?", (episode.id,)).fetchone()
    if row is None:
        return None
    stored = replace(Episode.of(row), key_digest=episode.key_digest)
    times = {"created_at": stored.created_at, "expires_at": stored.expires_at}
    if stored.expires_at <= episode.created_at or stored != replace(episode, **times):
        raise EpisodeConflictError("this request_id created an episode that has ended or is another one; use a new one")
    return stored


def members(connection: sqlite3.Connection, episode: Episode) -> list[Episode]:
    """Return the unsettled episodes of the same owner and group, oldest first."""
    found = connection.execute(
        "SELECT * FROM episodes WHERE state IN ('open', 'closed') AND owner = ? AND group_name IS ? ORDER BY number",
        (episode.owner, episode.group),
    )
    return [Episode.of(row) for row in found]


def settle(connection: sqlite3.Connection, episode: Episode, settled: Settled, at: float) -> None:
    """Commit the end of an episode: why it has no samples, or how many; its turns without a sample get a reason."""
    connection.execute(
        "UPDATE episodes SET state = 'settled', settled_at = ?, reason = ?, segments = ?, merged_turns = ? WHERE id = ?",
        (at, settled.reason, settled.segments, settled.merged_turns, episode.id),
    )
    if settled.reason is not None:
        connection.execute(
            "UPDATE turns SET reason = ? WHERE session_id >= ? AND session_id < ? AND reason = ?",
            (settled.reason, *episode.session_range, EPISODE),
        )


def _check_scored(connection: sqlite3.Connection, episode: Episode, scores: Mapping[str, float]) -> None:
    """Raise UnknownTurnError unless the episode has all turns of ``scores``."""
    for turn_id in scores:
        known = connection.execute(
            "SELECT 1 FROM turns WHERE id = ? AND session_id >= ? AND session_id < ?", (turn_id, *episode.session_range)
        ).fetchone()
        if known is None:
            raise UnknownTurnError(
                f"the episode has no turn {turn_id!r}; name turns by the ids of the agent's chat completions"
            )


def _check_group(episode: Episode, others: list[Episode]) -> None:
    """Raise EpisodeConflictError unless a new episode fits into its group."""
    size = episode.group_size or 0
    if any(other.group_size != size or other.task != episode.task for other in others):
        raise EpisodeConflictError(
            f"the group {episode.group!r} has another task or size; its episodes share both, so choose another name"
        )
    if len(others) >= size:
        raise EpisodeConflictError(
            f"the group {episode.group!r} has its {size} episodes; choose another name, or wait until it is settled"
        )


def turn_reason(connection: sqlite3.Connection, episode_id: str, turn: Turn, over: str) -> str | None:
    """Return why a new turn of an episode is not judged; None if the episode was deleted, so that nothing is recorded.

    Args:
        connection: in a transaction.
        episode_id: of the turn's owner; a collector's ledger has only the turns of an episode.
        turn: the turn with the reason that excludes it in any session, or None.
        over: the reason if the episode has ended.
    """
    found = connection.execute("SELECT state FROM episodes WHERE id = ?", (episode_id,)).fetchone()
    state = "open" if found is None else found["state"]
    if state == "deleted":
        return None
    if state != "open":
        return over
    return turn.reason or (ABORTED if turn.finish_reason == "abort" else EPISODE)
