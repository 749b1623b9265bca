"""Turns of an agent as training samples: turns that extend each other are merged, so that each token is processed once.

A turn extends a segment if its prompt begins with all of the segment's tokens, id by id. Then only what the prompt adds
and the reply are appended. Otherwise it begins a new segment, with its whole prompt as context: after a compaction, in
a sub-agent, in a second branch from the same prefix, or when the chat template rewrote the history.

Guarantees: no id is made or changed here. Each reply is in exactly one segment. Only tokens that the policy sampled have
loss mask 1; all others have log-probability 0.0, which nothing reads. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slime.utils.types import Sample


@dataclass(frozen=True)
class SampledTurn:
    """One reply of the policy, and the prompt that it answered.

    Attributes:
        prompt_ids: ids that the engine read.
        response_ids: ids that it sampled, the end token included.
        log_probs: their log-probabilities; same length.
        weight_spans: which weights sampled which of them, ``(version, start, end)``, half open.
    """

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    log_probs: Sequence[float]
    weight_spans: Sequence[tuple[str, int, int]] = ()

    def __post_init__(self) -> None:
        if len(self.log_probs) != len(self.response_ids):
            raise ValueError(f"{len(self.response_ids)} sampled ids have {len(self.log_probs)} log-probabilities")


@dataclass
class Segment:
    """Turns that share their tokens; per-token lists cover everything after the first prompt.

    Attributes:
        tokens: first prompt, then replies and what the environment said between them.
        prompt_length: number of tokens of the first prompt.
        turns: positions of the merged turns in the list given to `merge`.
        turn_spans: their replies, ``(start, end)`` within the response.
    """

    tokens: list[int]
    prompt_length: int
    loss_mask: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    weight_spans: list[list[str | int]] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    turn_spans: list[tuple[int, int]] = field(default_factory=list)

    def extends_to(self, turn: SampledTurn) -> bool:
        """Return whether the turn's prompt begins with this segment."""
        count = len(self.tokens)
        return len(turn.prompt_ids) >= count and list(turn.prompt_ids[:count]) == self.tokens

    def append(self, position: int, turn: SampledTurn) -> None:
        """Add a turn that extends this segment."""
        added = turn.prompt_ids[len(self.tokens) :]
        start = len(self.loss_mask) + len(added)
        self.tokens += [*added, *turn.response_ids]
        self.loss_mask += [0] * len(added) + [1] * len(turn.response_ids)
        self.log_probs += [0.0] * len(added) + list(turn.log_probs)
        for version, first, end in turn.weight_spans:
            self.weight_spans.append([version, start + first, start + end])
        self.turns.append(position)
        self.turn_spans.append((start, start + len(turn.response_ids)))

    def sample(self, **fields: object) -> Sample:
        """Return the training sample; ``fields`` are those that are not about tokens, such as ``reward``."""
        return Sample(
            tokens=list(self.tokens),
            response_length=len(self.loss_mask),
            loss_mask=list(self.loss_mask),
            rollout_log_probs=list(self.log_probs),
            weight_versions=list(dict.fromkeys(str(version) for version, _, _ in self.weight_spans)),
            weight_spans=[list(span) for span in self.weight_spans],
            **fields,  # pyright: ignore[reportArgumentType]
        )


def merge(turns: Sequence[SampledTurn]) -> list[Segment]:
    """Return the segments of an agent's turns, which come in the order of their requests.

    A turn joins the longest segment that it extends. A turn without a sampled token is left out.
    """
    segments: list[Segment] = []
    for position, turn in enumerate(turns):
        if not turn.response_ids:
            continue
        fitting = [segment for segment in segments if segment.extends_to(turn)]
        segment = max(fitting, key=lambda fit: len(fit.tokens), default=None)
        if segment is None:
            segment = Segment(list(turn.prompt_ids), len(turn.prompt_ids))
            segments.append(segment)
        segment.append(position, turn)
    return segments


def alone(turns: Sequence[SampledTurn]) -> list[Segment]:
    """Return a segment per turn, without merging."""
    return [segment for turn in turns for segment in merge([turn])]
