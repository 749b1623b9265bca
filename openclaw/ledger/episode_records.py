"""The records of episodes: what an agent's run is, how it ended, and what settling it gave. Immutable; stateless."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from openclaw.owners import MARK, episode_owner
from slime.rollout.rewards import trajectory_reward

EpisodeState = Literal["open", "closed", "settled", "deleted"]
EpisodeStatus = Literal["ok", "task_failed", "timeout", "infra_error", "expired"]

EPISODE = "episode"
"""Reason of a turn that belongs to an episode which has not given its samples yet; no judge reads such a turn."""
OVER = "episode_over"
"""Reason of a turn whose reply ended after its episode; it is in no sample."""
ABORTED = "aborted"
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


class Row(Protocol):
    """A row's columns by name."""

    def __getitem__(self, name: str, /) -> Any: ...


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

    def whole_reward(self, coefficient: float) -> float:
        """Return the reward plus ``coefficient`` times the mean score; an episode without a reward has 0."""
        return trajectory_reward(self.reward or 0.0, list(self.scores.values()), coefficient)

    @staticmethod
    def of(row: Row) -> Episode:
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
            scores=scores_of(row),
            closed_at=row["closed_at"],
            settled_at=row["settled_at"],
            reason=row["reason"],
            segments=row["segments"],
            merged_turns=row["merged_turns"],
        )


def scores_of(row: Row) -> dict[str, float]:
    """Return the scores of turns in a row of ``episodes``."""
    return json.loads(row["scores"] or "{}")


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
class EpisodeRules:
    """What the trainer can use, as `openclaw.judge.hygiene` has it for the turns of people.

    Attributes:
        temperature: by which it divides logits; log-probabilities at another temperature would not match.
        max_tokens: limit on prompt plus response tokens.
        step_coefficient: weight of the mean score of an episode's turns in its reward.
        trains_rewards: whether the run's method learns from rewards; otherwise no episode gives samples.
        compares_rewards: whether an episode without a group is compared with earlier ones (``OPENCLAW_BASELINE``);
            otherwise its reward is its advantage.
    """

    temperature: float
    max_tokens: int
    trains_rewards: bool = True
    step_coefficient: float = 1.0
    compares_rewards: bool = True


@dataclass(frozen=True)
class Settled:
    """An episode that was settled: its reason if it gave no samples, its samples, and its merged turns."""

    id: str
    reason: str | None
    segments: int = 0
    merged_turns: int = 0
