"""Settles closed episodes: advantages within a group, or against earlier rewards, and the samples.

The reward of an episode is what its driver gave, plus the run's coefficient times the mean score of its turns.

A group is settled when it has as many closed episodes as it was announced with. It is given up when none of its episodes is
open and the time of all of them is over, or its driver closes it: two or more are then compared without the missing ones, a
single one gives no samples. Episodes that ended by an error of the infrastructure, without a reward or by time are missing.

Guarantees: all episodes of a group are settled in one transaction, each once, whatever crashes. Rewards are compared only
within a group, or with earlier rewards of episodes of the same owner that have no group; never with those of people's
turns. Reading and merging the turns happens outside of the transaction, so that nobody's turn waits for it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw.ledger.baseline import BASELINE, WINDOW, mean_of
from openclaw.ledger.codec import encode_sample
from openclaw.ledger.episode_records import (
    INFRA_ERROR,
    NO_SIGNAL,
    NO_TURNS,
    REWARD_UNUSED,
    STRAGGLER,
    Episode,
    EpisodeRules,
    Settled,
    scores_of,
)
from openclaw.ledger.episode_samples import EpisodeSample, Made, episode_samples
from openclaw.ledger.episodes import EpisodeQueries, members, settle
from openclaw.ledger.exceptions import EpisodeConflictError, UnknownRecordError
from slime.rollout.rewards import CONSTANT, compared, trajectory_reward


@dataclass(frozen=True)
class Due:
    """Episodes to settle together; ``reason``: they give no samples."""

    episodes: Sequence[Episode]
    reason: str | None = None


class EpisodeGroupQueries(EpisodeQueries):
    """The ledger's queries that settle episodes."""

    def close_group(self, owner: str, name: str, *, end_open: bool = False) -> list[Settled]:
        """Commit that a group gets no more members, so that `settle_episodes` compares those it has.

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
        now = self.clock()
        with self.transaction() as connection:
            found = self.group(owner, name)
            if not found:
                raise UnknownRecordError(f"{self.path} holds no group {name!r}")
            opened = [episode.id for episode in found if episode.state == "open"]
            if opened and not end_open:
                raise EpisodeConflictError(
                    f"{len(opened)} episodes of the group {name!r} are open; reward or delete them, or send end_open"
                )
            for each in opened:
                self.close_episode(each, INFRA_ERROR, None)
            connection.execute(
                "UPDATE episodes SET expires_at = ? WHERE owner = ? AND group_name = ? AND state = 'closed' AND expires_at > ?",
                (now, owner, name, now),
            )
        return [Settled(each, INFRA_ERROR) for each in opened]

    def settle_episodes(self, rules: EpisodeRules) -> list[Settled]:
        """Settle every closed episode that is due, and return what became of each."""
        done: list[Settled] = []
        for due in self._due():
            done += self._settle(due if rules.trains_rewards else Due(due.episodes, REWARD_UNUSED), rules)
        return done

    def _due(self) -> list[Due]:
        closed = [Episode.of(row) for row in self.rows("SELECT * FROM episodes WHERE state = 'closed' ORDER BY number")]
        groups: dict[tuple[str, str], list[Episode]] = {}
        due: list[Due] = []
        for episode in closed:
            if episode.group is None:
                due.append(Due([episode]))
            else:
                groups.setdefault((episode.owner, episode.group), []).append(episode)
        for (owner, group), found in groups.items():
            waited = self.rows(
                "SELECT 1 FROM episodes WHERE state = 'open' AND owner = ? AND group_name = ? LIMIT 1", (owner, group)
            )
            if len(found) == found[0].group_size:
                due.append(Due(found))
            elif not waited and max(episode.expires_at for episode in found) <= self.clock():
                due.append(Due(found, STRAGGLER if len(found) == 1 else None))
        return due

    def _settle(self, due: Due, rules: EpisodeRules) -> list[Settled]:
        rewards = [episode.whole_reward(rules.step_coefficient) for episode in due.episodes]
        reason, advantages = due.reason, rewards
        if reason is None and len(rewards) > 1:
            advantages = compared(rewards)
            reason = NO_SIGNAL if max(rewards) - min(rewards) <= CONSTANT else None
        made = [Made() for _ in due.episodes]
        if reason is None:
            pairs = zip(due.episodes, advantages, strict=True)
            made = [episode_samples(episode, self.episode_turns(episode), value, rules) for episode, value in pairs]
        with self.transaction() as connection:
            if not _as_read(connection, due.episodes, made):
                return []  # deleted or settled meanwhile; the next call looks again
            return [
                self._settle_one(connection, episode, each, reason, rules)
                for episode, each in zip(due.episodes, made, strict=True)
            ]

    def _settle_one(
        self, connection: sqlite3.Connection, episode: Episode, made: Made, reason: str | None, rules: EpisodeRules
    ) -> Settled:
        baseline, coefficient = None, rules.step_coefficient
        if episode.group is None:
            earlier = _earlier_rewards(connection, episode.owner, coefficient) if rules.compares_rewards else []
            baseline = mean_of(earlier)
            reason = reason or (NO_SIGNAL if abs(episode.whole_reward(coefficient) - baseline) <= CONSTANT else None)
        if reason is None and not made.samples:
            reason = NO_TURNS
        kept = made.samples if reason is None else ()
        for each in kept:
            if baseline is not None:
                each.sample.metadata[BASELINE] = baseline
            self._insert_segment(connection, episode, each)
        unused = [(why, turn_id) for turn_id, why in made.unused.items()]
        connection.executemany("UPDATE turns SET reason = ? WHERE id = ?", unused)
        settled = Settled(episode.id, reason, len(kept), sum(len(each.turns) - 1 for each in kept))
        settle(connection, episode, settled, self.clock())
        return settled

    def _insert_segment(self, connection: sqlite3.Connection, episode: Episode, made: EpisodeSample) -> None:
        columns = {
            "turn_id": made.turns[0],
            **encode_sample(made.sample),
            "state": "ready",
            "created_at": self.clock(),
            "episode": episode.id,
        }
        marks = ", ".join("?" for _ in columns)
        inserted = connection.execute(
            f"INSERT INTO samples ({', '.join(columns)}) VALUES ({marks})", tuple(columns.values())
        )
        connection.executemany(
            "UPDATE turns SET segment = ?, reason = NULL WHERE id = ?",
            [(inserted.lastrowid, turn_id) for turn_id in made.turns],
        )


def _earlier_rewards(connection: sqlite3.Connection, owner: str, coefficient: float) -> list[float]:
    """Return the last `WINDOW` rewards of an owner's settled episodes without a group, newest first."""
    found = connection.execute(
        "SELECT reward, scores FROM episodes WHERE owner = ? AND state = 'settled' AND group_name IS NULL AND reward IS NOT NULL"
        " ORDER BY settled_at DESC, number DESC LIMIT ?",
        (owner, WINDOW),
    )
    return [trajectory_reward(row["reward"], list(scores_of(row).values()), coefficient) for row in found]


def _as_read(connection: sqlite3.Connection, episodes: Sequence[Episode], made: Sequence[Made]) -> bool:
    """Return whether the episodes are still closed, their groups have no other members, and no turn was deleted."""
    if episodes[0].group is None:
        ids = [
            row["id"]
            for row in connection.execute(
                "SELECT id FROM episodes WHERE id = ? AND state = 'closed'", (episodes[0].id,)
            )
        ]
    else:
        ids = [episode.id for episode in members(connection, episodes[0])]
    turns = [turn for each in made for sample in each.samples for turn in sample.turns]
    there = sum(
        connection.execute("SELECT 1 FROM turns WHERE id = ?", (turn,)).fetchone() is not None for turn in turns
    )
    return ids == [episode.id for episode in episodes] and there == len(turns)
