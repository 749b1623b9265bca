"""The turns of an episode as training samples: one per segment (`slime.rollout.segments`).

Guarantees: ids, log-probabilities and weight spans are those of the turns. Every reply that the policy sampled for the
agent is trained, side calls such as a title request included, because the agent's reward is the reward of all of them. Not
trained are aborted replies, replies that were not sampled like the policy samples, turns without ids because they
contained a secret, and what does not fit the trainer (`unusable`). As part of a later prompt, their tokens are context with
loss mask 0. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from openclaw.ledger.episode_records import EPISODE, NO_TOKENS, Episode, EpisodeRules
from openclaw.ledger.records import Turn
from openclaw.messages.text import response_text
from slime.rollout.segments import SampledTurn, Segment, merge
from slime.utils.types import Sample


@dataclass(frozen=True)
class EpisodeSample:
    """A sample with the turns that it holds, in order."""

    turns: tuple[str, ...]
    sample: Sample


@dataclass(frozen=True)
class Made:
    """The samples of an episode, and why turns are in none of them, by turn id."""

    samples: Sequence[EpisodeSample] = ()
    unused: Mapping[str, str] = field(default_factory=dict[str, str])


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
    return next((reason for reason, found in checks.items() if found), None)


class PictureMarks:
    """Puts a number of its own in place of each picture's placeholders while turns are compared.

    So a turn whose prompt has another picture at a place does not extend the turns before it, although its ids do.
    """

    def __init__(self) -> None:
        self._marks: dict[tuple[str, int], int] = {}

    def marked(self, turn: Turn) -> list[int]:
        """Return a turn's prompt ids with marks, which are below 0."""
        ids = list(turn.prompt_ids)
        for each in turn.pictures:
            mark = self._marks.setdefault((each.sha256, ids[each.start]), -1 - len(self._marks))
            ids[each.start : each.start + each.tokens] = [mark] * each.tokens
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
