"""Settles closed episodes: their samples, one per segment, and the advantages of their rewards.

The reward of an episode is what its driver gave, plus the run's coefficient times the mean score of its turns. It is compared
within a group, or with the earlier rewards of episodes of the same owner that have no group; never with those of people's turns.

A group is settled when it has as many closed episodes as it was announced with. It is given up when none of its episodes is
open and the time of all of them is over, or its driver closes it: two or more are then compared without the missing ones, a
single one gives no samples. Episodes that ended by an error of the infrastructure, without a reward or by time are missing.

Guarantees: all episodes of a group are settled in one transaction, each once, whatever crashes. Reading and merging the turns
happens outside of the transaction, so that nobody's turn waits for it. Ids, log-probabilities and weight spans of a sample are
those of its turns. Every reply that the policy sampled for the agent is trained, side calls such as a title request included,
because the agent's reward is the reward of all of them. Not trained are aborted replies, replies that were not sampled like
the policy samples, turns without ids because they contained a secret, and what does not fit the trainer (`unusable`). As part
of a later prompt, their tokens are context with loss mask 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from openclaw.credit.baseline import WINDOW, mean_of
from openclaw.ledger.episodes import (
    NO_SIGNAL,
    NO_TOKENS,
    NO_TURNS,
    REWARD_UNUSED,
    Due,
    Episode,
    EpisodeSample,
    Settled,
)
from openclaw.ledger.records import BASELINE, EPISODE, Turn
from openclaw.ledger.store import Ledger
from openclaw.messages.text import response_text
from slime.rollout.rewards import CONSTANT, compared, trajectory_reward
from slime.rollout.segments import SampledTurn, Segment, merge
from slime.utils.types import Sample


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
class Made:
    """The samples of an episode, and why turns are in none of them, by turn id."""

    samples: Sequence[EpisodeSample] = ()
    unused: Mapping[str, str] = field(default_factory=dict[str, str])


def settle(ledger: Ledger, rules: EpisodeRules) -> list[Settled]:
    """Settle every closed episode that is due, and return what became of each."""
    done: list[Settled] = []
    for due in ledger.episodes.due():
        done += _settle(ledger, due if rules.trains_rewards else Due(due.episodes, REWARD_UNUSED), rules)
    return done


def _settle(ledger: Ledger, due: Due, rules: EpisodeRules) -> list[Settled]:
    rewards = [whole_reward(episode, rules) for episode in due.episodes]
    reason, advantages = due.reason, rewards
    if reason is None and len(rewards) > 1:
        advantages = compared(rewards)
        reason = NO_SIGNAL if max(rewards) - min(rewards) <= CONSTANT else None
    made = [Made() for _ in due.episodes]
    if reason is None:
        pairs = zip(due.episodes, advantages, strict=True)
        made = [episode_samples(episode, ledger.episodes.turns(episode), value, rules) for episode, value in pairs]
    turns = [turn for item in made for sample in item.samples for turn in sample.turns]
    with ledger.transaction():
        if not ledger.episodes.is_as_read(due.episodes, turns):
            return []  # deleted or settled meanwhile; the next call looks again
        settled: list[Settled] = []
        for episode, item in zip(due.episodes, made, strict=True):
            why, samples = _credited(ledger, episode, item.samples, reason, rules)
            settled.append(ledger.episodes.settle(episode, why, samples, item.unused))
        return settled


def _credited(
    ledger: Ledger, episode: Episode, samples: Sequence[EpisodeSample], reason: str | None, rules: EpisodeRules
) -> tuple[str | None, Sequence[EpisodeSample]]:
    """Return why an episode gives no samples, or None and its samples; one without a group has a baseline of its own."""
    if episode.group is None:
        earlier = ledger.episodes.earlier(episode.owner, WINDOW) if rules.compares_rewards else []
        baseline = mean_of([whole_reward(item, rules) for item in earlier])
        if reason is None and abs(whole_reward(episode, rules) - baseline) <= CONSTANT:
            reason = NO_SIGNAL
        for sample in samples:
            sample.sample.metadata[BASELINE] = baseline
    if reason is None and not samples:
        reason = NO_TURNS
    return reason, samples if reason is None else ()


def whole_reward(episode: Episode, rules: EpisodeRules) -> float:
    """Return an episode's reward plus the coefficient times its mean score; an episode without a reward has 0."""
    return trajectory_reward(episode.reward or 0.0, list(episode.scores.values()), rules.step_coefficient)


def episode_samples(episode: Episode, turns: Sequence[Turn], reward: float, rules: EpisodeRules) -> Made:
    """Return the samples of an episode's turns, which come in the order in which they were recorded.

    Args:
        episode: the episode, closed.
        turns: all of its turns; only those with the reason `EPISODE` are trained.
        reward: what becomes the advantage of each trained token.
        rules: what the trainer can use.
    """
    candidates = [turn for turn in turns if turn.reason == EPISODE]
    unused = {turn.id: reason for turn in candidates if (reason := unusable(turn, rules))}
    trained = [turn for turn in candidates if turn.id not in unused]
    marks = PictureMarks()
    segments = merge([sampled(turn, marks) for turn in trained])
    samples = [
        _sample(
            episode,
            marks.cleared(segment),
            [trained[position] for position in segment.turns],
            number,
            len(segments),
            reward,
        )
        for number, segment in enumerate(segments)
    ]
    return Made(samples, unused)


def unusable(turn: Turn, rules: EpisodeRules) -> str | None:
    """Return why the trainer cannot use a reply that the policy sampled, or None."""
    empty = not turn.response_ids or not turn.prompt_ids
    checks = {NO_TOKENS: empty, **turn.misfits(rules.temperature, rules.max_tokens)}
    return next((reason for reason, check in checks.items() if check), None)


class PictureMarks:
    """Puts a number of its own in place of each picture's placeholders while turns are compared.

    So a turn whose prompt has another picture at a place does not extend the turns before it, although its ids do.
    """

    def __init__(self) -> None:
        self._marks: dict[tuple[str, int], int] = {}

    def marked(self, turn: Turn) -> list[int]:
        """Return a turn's prompt ids with marks, which are below 0."""
        ids = list(turn.prompt_ids)
        for picture in turn.pictures:
            mark = self._marks.setdefault((picture.sha256, ids[picture.start]), -1 - len(self._marks))
            ids[picture.start : picture.start + picture.tokens] = [mark] * picture.tokens
        return ids

    def cleared(self, segment: Segment) -> Segment:
        """Return a segment of marked turns with the ids that the engine read."""
        if not self._marks:
            return segment
        ids = {mark: placeholder for (_, placeholder), mark in self._marks.items()}
        return replace(segment, tokens=[ids.get(token, token) for token in segment.tokens])


def sampled(turn: Turn, marks: PictureMarks) -> SampledTurn:
    """Return a turn as `slime.rollout.segments` reads it."""
    spans = [(span.version, span.start, span.end) for span in turn.weight_versions]
    return SampledTurn(marks.marked(turn), turn.response_ids, turn.response_logprobs, spans)


def _sample(
    episode: Episode, segment: Segment, turns: Sequence[Turn], number: int, count: int, reward: float
) -> EpisodeSample:
    last = turns[-1]
    ids = tuple(turn.id for turn in turns)
    sample = segment.sample(
        prompt=turns[0].messages,
        response=response_text(last.response_message),
        reward=float(reward),
        session_id=turns[0].session_id,
        status=Sample.Status.TRUNCATED if last.finish_reason == "length" else Sample.Status.COMPLETED,
        metadata={
            "episode": episode.id,
            "group": episode.group,
            "task": episode.task,
            "segment": number,
            "segments": count,
            "turns": list(ids),
            "turn_index": last.index,
            "raw_reward": episode.reward,
        },
    )
    return EpisodeSample(ids, sample)
