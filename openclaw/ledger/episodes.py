"""Episodes: an agent's runs, from the key to the reward. `openclaw.credit.episodes` makes their samples.

States: open -> closed (it has its reward) -> settled (its samples are made, or there is a reason for none); an episode that
cannot be rewarded is settled at once. Any state -> deleted, which leaves a row without contents.

Guarantees: of an episode's key only the SHA-256 is stored, until the episode ends. An episode gets one reward; the same
one again changes nothing, another one is refused. A turn that is recorded after the end of its episode is in no sample
(`openclaw.ledger.turns`), so the turns of a closed episode stay as they are. All episodes of a group are settled in one
transaction.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from groundwork.chat_messages import pictures_in
from openclaw.ledger.codec import decode_turn
from openclaw.ledger.database import Database
from openclaw.ledger.exceptions import EpisodeConflictError, OpenEpisodesError, UnknownRecordError, UnknownTurnError
from openclaw.ledger.records import EPISODE, Turn
from openclaw.ledger.samples import insert_sample
from openclaw.ledger.turns import Pictures
from openclaw.owners import MARK, episode_owner
from slime.utils.types import Sample

EpisodeState = Literal["open", "closed", "settled", "deleted"]
EpisodeStatus = Literal["ok", "task_failed", "timeout", "infra_error", "expired"]
FORGOTTEN = "episode_forgotten"
"""Reason of a turn whose sample was deleted together with another session of its episode."""
NO_TOKENS = "no_tokens"
"""Reason of a turn of a settled episode without ids: an empty reply, or one that contained a secret."""
INFRA_ERROR = "infra_error"
EXPIRED = "expired"
NO_REWARD = "no_reward"
NO_TURNS = "no_turns"
NO_SIGNAL = "no_signal"
STRAGGLER = "straggler"
REWARD_UNUSED = "reward_unused"
"""Reasons of an episode without samples; the last one: the run's method does not learn from rewards."""


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One run of an agent.

    Attributes:
        id: unique, ``episode-HEX``.
        owner: who created it (`openclaw.owners`); the owner of its turns is a child.
        key_name: name of the key that created it.
        key_digest: SHA-256 of its own key; None once it has ended.
        task: what the agent does, in the driver's words.
        group: name of the episodes whose rewards are compared with each other, or None.
        group_size: how many they are, or None.
        metadata: the driver's own data.
        created_at: seconds since the epoch, like the other times.
        expires_at: when it ends by itself.
        state: ``open``; ``closed``: it has its reward and waits for its group; ``settled``; ``deleted``.
        status: how it ended, None while it is open.
        reward: from -1 to 1, or None.
        scores: of some of its turns, by turn id, from -1 to 1.
        closed_at: when it ended.
        settled_at: when its samples were made, or it was decided that there are none.
        reason: why it gave no samples, or None.
        segments: number of its samples.
        merged_turns: number of its turns that share a sample with an earlier turn.
    """

    id: str
    owner: str
    key_name: str
    key_digest: bytes | None
    task: str
    created_at: float
    expires_at: float
    group: str | None = None
    group_size: int | None = None
    metadata: Mapping[str, Any]
    state: EpisodeState = "open"
    status: EpisodeStatus | None = None
    reward: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    closed_at: float | None = None
    settled_at: float | None = None
    reason: str | None = None
    segments: int = 0
    merged_turns: int = 0

    @property
    def turn_owner(self) -> str:
        """The owner of its turns."""
        return episode_owner(self.owner, self.id)

    @property
    def session_range(self) -> tuple[str, str]:
        """Bounds of the stored ids of its sessions: from the first, included, to the second, excluded."""
        return f"{MARK}{self.turn_owner}:", f"{MARK}{self.turn_owner};"

    @staticmethod
    def of(row: sqlite3.Row) -> Episode:
        """Return the episode of a row of ``episodes``."""
        return Episode(
            id=row["id"],
            owner=row["owner"],
            key_name=row["key_name"],
            key_digest=row["key_digest"],
            task=row["task"],
            created_at=row["created_at"],
            expires_at=row["expires_at"],
            group=row["group_name"],
            group_size=row["group_size"],
            metadata=json.loads(row["metadata"]),
            state=row["state"],
            status=row["status"],
            reward=row["reward"],
            scores=json.loads(row["scores"] or "{}"),
            closed_at=row["closed_at"],
            settled_at=row["settled_at"],
            reason=row["reason"],
            segments=row["segments"],
            merged_turns=row["merged_turns"],
        )


@dataclass(frozen=True)
class EpisodeCounts:
    """What an episode has so far.

    Attributes:
        turns: replies, ``aborted`` ones included.
        aborted: replies that did not reach their end.
        prompt_tokens: tokens that the engine read.
        generated_tokens: tokens that it sampled.
        weight_versions: versions of the weights that sampled them, in order.
        reasons: why turns are in no sample, with their numbers.
        samples: its samples by state.
    """

    turns: int
    aborted: int
    prompt_tokens: int
    generated_tokens: int
    weight_versions: tuple[str, ...]
    reasons: Mapping[str, int]
    samples: Mapping[str, int]


@dataclass(frozen=True)
class Settled:
    """An episode that was settled: its reason if it gave no samples, its samples, and its merged turns."""

    id: str
    reason: str | None
    segments: int = 0
    merged_turns: int = 0


@dataclass(frozen=True)
class Due:
    """Episodes to settle together; ``reason``: they give no samples."""

    episodes: Sequence[Episode]
    reason: str | None = None


@dataclass(frozen=True)
class EpisodeSample:
    """A sample with the turns that it holds, in order."""

    turns: tuple[str, ...]
    sample: Sample


class Episodes:
    """The episodes of the ledger.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from openclaw.ledger.store import Ledger
        >>> folder = TemporaryDirectory()
        >>> ledger = Ledger(f"{folder.name}/ledger.sqlite", clock=lambda: 100.0)
        >>> episode = Episode(
        ...     id="episode-1",
        ...     owner="",
        ...     key_name="agents",
        ...     key_digest=b"",
        ...     task="mend the test",
        ...     metadata={},
        ...     created_at=100.0,
        ...     expires_at=700.0,
        ... )
        >>> ledger.episodes.create(episode, most_open=10)
        >>> ledger.episodes.close("episode-1", "completed", reward=1.0)
        True
        >>> closed = ledger.episodes.get("episode-1")
        >>> closed.state, closed.reward
        ('closed', 1.0)
        >>> ledger.close()
        >>> folder.cleanup()
    """

    def __init__(self, database: Database, pictures: Pictures) -> None:
        self._database = database
        self._pictures = pictures

    def create(self, episode: Episode, most_open: int) -> Episode | None:
        """Commit a new episode; or, if it is open already, its new key.

        Args:
            episode: the episode, open.
            most_open: how many open episodes its owner may have, this one included.

        Returns:
            None, or the open episode of this id with its new key.

        Raises:
            OpenEpisodesError: its owner has too many open episodes.
            EpisodeConflictError: its group is full, the group's other episodes have another task or size, or the id is of an
                episode that has ended or is another one.
        """
        if self._database.redaction is not None:
            [redacted] = self._database.redaction.messages([{"task": episode.task, "metadata": dict(episode.metadata)}])
            episode = replace(episode, task=redacted["task"], metadata=redacted["metadata"])
        with self._database.transaction() as connection:
            if (earlier := _same(connection, episode)) is not None:
                self._database.update_one(connection, "episodes", episode.id, key_digest=episode.key_digest)
                return earlier
            opened = connection.execute(
                "SELECT COUNT(*) FROM episodes WHERE state = 'open' AND owner = ?", (episode.owner,)
            ).fetchone()[0]
            if opened >= most_open:
                raise OpenEpisodesError(
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
            self._database.insert(connection, "episodes", columns)
        return None

    def get(self, episode_id: str, *, deleted: bool = False) -> Episode:
        """Return one episode; ``deleted``: also one whose contents were deleted.

        Raises:
            UnknownRecordError: if there is none.
        """
        rows = self._database.rows(
            "SELECT * FROM episodes WHERE id = ? AND (? OR state != 'deleted')", (episode_id, deleted)
        )
        if not rows:
            raise UnknownRecordError(f"{self._database.path} holds no episode {episode_id!r}")
        return Episode.of(rows[0])

    def all(self) -> list[Episode]:
        """Return all episodes that were not deleted, oldest first."""
        return [
            Episode.of(row)
            for row in self._database.rows("SELECT * FROM episodes WHERE state != 'deleted' ORDER BY number")
        ]

    def open(self) -> list[Episode]:
        """Return the open episodes, oldest first."""
        return [
            Episode.of(row)
            for row in self._database.rows("SELECT * FROM episodes WHERE state = 'open' ORDER BY number")
        ]

    def close(
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
        with self._database.transaction() as connection:
            episode = self.get(episode_id)
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
                (status, reward, json.dumps(given) if given else None, self._database.clock(), episode_id),
            )
            unusable = {INFRA_ERROR: INFRA_ERROR, EXPIRED: EXPIRED}.get(status, NO_REWARD if reward is None else None)
            if unusable is not None:
                settle(connection, episode, Settled(episode_id, unusable), self._database.clock())
        return True

    def group(self, owner: str, name: str) -> list[Episode]:
        """Return an owner's episodes of a group that were not deleted, oldest first."""
        rows = self._database.rows(
            "SELECT * FROM episodes WHERE owner = ? AND group_name = ? ORDER BY number", (owner, name)
        )
        return [Episode.of(row) for row in rows]

    def expire(self) -> list[Settled]:
        """Close the open episodes whose time is over, without reward; return them."""
        now = self._database.clock()
        late = self._database.rows("SELECT id FROM episodes WHERE state = 'open' AND expires_at <= ?", (now,))
        return [Settled(row["id"], EXPIRED) for row in late if self._expire(row["id"])]

    def move_expiry(self, seconds: float) -> None:
        """Let the episodes that have not settled expire later by ``seconds``, because the clock has jumped by them."""
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE episodes SET expires_at = expires_at + ? WHERE state IN ('open', 'closed')", (seconds,)
            )

    def _expire(self, episode_id: str) -> bool:
        try:
            return self.close(episode_id, EXPIRED, None)
        except (EpisodeConflictError, UnknownRecordError):  # it was rewarded or deleted a moment ago
            return False

    def turns(self, episode: Episode) -> list[Turn]:
        """Return an episode's turns in the order in which they were recorded, with the places of their pictures."""
        rows = self._database.rows(
            "SELECT * FROM turns WHERE session_id >= ? AND session_id < ? ORDER BY number", episode.session_range
        )
        turns = [decode_turn(row) for row in rows]
        seen = self._pictures.places([turn.id for turn in turns if pictures_in(turn.messages)])
        return [replace(turn, pictures=seen.get(turn.id, ())) for turn in turns]

    def sessions(self, episode: Episode) -> list[str]:
        """Return the stored ids of an episode's sessions, in order."""
        rows = self._database.rows(
            "SELECT id FROM sessions WHERE id >= ? AND id < ? ORDER BY id", episode.session_range
        )
        return [row["id"] for row in rows]

    def counts(self, episode: Episode) -> EpisodeCounts:
        """Return what an episode has so far."""
        rows = self._database.rows(
            "SELECT reason, finish_reason, length(prompt_ids) / 4 AS prompt, length(response_ids) / 4 AS reply,"
            " weight_versions FROM turns WHERE session_id >= ? AND session_id < ? ORDER BY number",
            episode.session_range,
        )
        samples = self._database.rows(
            "SELECT state, COUNT(*) AS n FROM samples WHERE episode = ? GROUP BY state ORDER BY state", (episode.id,)
        )
        versions = [span["version"] for row in rows for span in json.loads(row["weight_versions"])]
        return EpisodeCounts(
            turns=len(rows),
            aborted=sum(row["finish_reason"] == "abort" for row in rows),
            prompt_tokens=sum(row["prompt"] for row in rows),
            generated_tokens=sum(row["reply"] for row in rows),
            weight_versions=tuple(dict.fromkeys(versions)),
            reasons=dict(Counter(row["reason"] for row in rows if row["reason"] not in (None, EPISODE))),
            samples={row["state"]: row["n"] for row in samples},
        )

    def delete(self, episode_id: str) -> Episode:
        """Delete an episode's contents and key; its sessions are deleted with `openclaw.ledger.sessions`.

        A reply that is under way is not recorded any more. Deleting it again returns it again, so that a caller who died
        before it deleted the sessions can go on.

        Raises:
            UnknownRecordError: if there is no such episode, or nothing of it is left.
        """
        with self._database.transaction() as connection:
            row = connection.execute("SELECT * FROM episodes WHERE id = ?", (episode_id,)).fetchone()
            if row is None or (row["state"] == "deleted" and not self.sessions(Episode.of(row))):
                raise UnknownRecordError(f"{self._database.path} holds no episode {episode_id!r}")
            connection.execute(
                "UPDATE episodes SET state = 'deleted', task = '', metadata = '{}', group_name = NULL, key_digest = NULL,"
                " status = NULL, reward = NULL, scores = NULL, reason = NULL WHERE id = ?",
                (episode_id,),
            )
        return Episode.of(row)

    def delete_quiet(self, since: float) -> int:
        """Delete the contents of settled episodes that ended before ``since`` and have no session left; return their number."""
        rows = self._database.rows(
            "SELECT * FROM episodes WHERE state = 'settled' AND settled_at < ? ORDER BY number", (since,)
        )
        quiet = [episode for episode in map(Episode.of, rows) if not self.sessions(episode)]
        for episode in quiet:
            self.delete(episode.id)
        return len(quiet)

    def close_group(self, owner: str, name: str, *, end_open: bool = False) -> list[Settled]:
        """Commit that a group gets no more members, so that `openclaw.credit.episodes.settle` compares those it has.

        Does nothing to a group that is settled. Nothing is kept of the group itself: a new episode of this name waits for
        others again.

        Args:
            owner: of the group.
            name: of the group.
            end_open: end its open episodes as spoiled by the infrastructure; otherwise they are a conflict.

        Returns:
            The episodes that were open.

        Raises:
            UnknownRecordError: if the owner has no episode in such a group.
            EpisodeConflictError: if an episode of it is open.
        """
        now = self._database.clock()
        with self._database.transaction() as connection:
            members = self.group(owner, name)
            if not members:
                raise UnknownRecordError(f"{self._database.path} holds no group {name!r}")
            opened = [episode.id for episode in members if episode.state == "open"]
            if opened and not end_open:
                raise EpisodeConflictError(
                    f"{len(opened)} episodes of the group {name!r} are open; reward or delete them, or send end_open"
                )
            for item in opened:
                self.close(item, INFRA_ERROR, None)
            connection.execute(
                "UPDATE episodes SET expires_at = ? WHERE owner = ? AND group_name = ? AND state = 'closed' AND expires_at > ?",
                (now, owner, name, now),
            )
        return [Settled(item, INFRA_ERROR) for item in opened]

    def due(self) -> list[Due]:
        """Return the closed episodes that can be settled: alone, or with all of their group that there will be."""
        closed = [
            Episode.of(row)
            for row in self._database.rows("SELECT * FROM episodes WHERE state = 'closed' ORDER BY number")
        ]
        groups: dict[tuple[str, str], list[Episode]] = {}
        due: list[Due] = []
        for episode in closed:
            if episode.group is None:
                due.append(Due([episode]))
            else:
                groups.setdefault((episode.owner, episode.group), []).append(episode)
        for (owner, group), result in groups.items():
            waited = self._database.rows(
                "SELECT 1 FROM episodes WHERE state = 'open' AND owner = ? AND group_name = ? LIMIT 1", (owner, group)
            )
            if len(result) == result[0].group_size:
                due.append(Due(result))
            elif not waited and max(episode.expires_at for episode in result) <= self._database.clock():
                due.append(Due(result, STRAGGLER if len(result) == 1 else None))
        return due

    def earlier(self, owner: str, limit: int) -> list[Episode]:
        """Return an owner's last settled episodes that have a reward and no group, newest first."""
        rows = self._database.rows(
            "SELECT * FROM episodes WHERE owner = ? AND state = 'settled' AND group_name IS NULL AND reward IS NOT NULL"
            " ORDER BY settled_at DESC, number DESC LIMIT ?",
            (owner, limit),
        )
        return [Episode.of(row) for row in rows]

    def is_as_read(self, episodes: Sequence[Episode], turns: Sequence[str]) -> bool:
        """Return whether the episodes are still closed, their group has no other members, and no turn was deleted."""
        with self._database.transaction() as connection:
            if episodes[0].group is None:
                where = "SELECT id FROM episodes WHERE id = ? AND state = 'closed'"
                ids = [row["id"] for row in connection.execute(where, (episodes[0].id,))]
            else:
                ids = [episode.id for episode in members(connection, episodes[0])]
            there = "SELECT 1 FROM turns WHERE id = ?"
            return ids == [episode.id for episode in episodes] and all(
                connection.execute(there, (turn,)).fetchone() is not None for turn in turns
            )

    def settle(
        self, episode: Episode, reason: str | None, samples: Sequence[EpisodeSample], unused: Mapping[str, str]
    ) -> Settled:
        """Commit the samples of a closed episode, or the reason why it has none.

        Args:
            episode: the episode.
            reason: why it has no samples, or None.
            samples: its samples.
            unused: why turns are in none of them, by turn id.
        """
        settled = Settled(episode.id, reason, len(samples), sum(len(sample.turns) - 1 for sample in samples))
        with self._database.transaction() as connection:
            for sample in samples:
                segment = insert_sample(self._database, connection, sample.turns[0], sample.sample, episode=episode.id)
                connection.executemany(
                    "UPDATE turns SET segment = ?, reason = NULL WHERE id = ?",
                    [(segment, turn_id) for turn_id in sample.turns],
                )
            reasons = [(why, turn_id) for turn_id, why in unused.items()]
            connection.executemany("UPDATE turns SET reason = ? WHERE id = ?", reasons)
            settle(connection, episode, settled, self._database.clock())
        return settled


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
    rows = connection.execute(
        "SELECT * FROM episodes WHERE state IN ('open', 'closed') AND owner = ? AND group_name IS ? ORDER BY number",
        (episode.owner, episode.group),
    )
    return [Episode.of(row) for row in rows]


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
