"""Which ready samples fill a batch when several owners have some: shares per owner, the oldest first.

Guarantees, while another owner has ready samples left: an owner holds at most its share of the batch, and samples that
the owner scored by feedback at most theirs. The owner's share goes first: when both cannot hold, more feedback is taken.
A batch is full whenever enough samples are ready, so nobody starves; where the shares cannot fill it, the owner with the
fewest samples is next. The samples of a single owner are taken oldest first, whatever the shares. The choice is a pure
function of ids.
"""

from __future__ import annotations

import heapq
import math
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import NamedTuple, cast

from openclaw.config.runtime_variables import RuntimeVariables


@dataclass(frozen=True)
class Quota:
    """Shares of a batch, above 0 and at most 1; 1 is no bound.

    Attributes:
        owner: samples of one owner.
        feedback: samples of one owner whose score its own feedback stated.
    """

    owner: float = RuntimeVariables.owner_share
    feedback: float = RuntimeVariables.feedback_share

    @staticmethod
    def from_env(environment: Mapping[str, str] = os.environ) -> Quota:
        """Return the shares that the environment sets.

        Raises:
            ConfigError: a variable is invalid; the message says what to type.
        """
        values = (RuntimeVariables.declared(f"{each.name}_share").read(environment)[0] for each in fields(Quota))
        return Quota(*cast("Iterator[float]", values))


class Candidate(NamedTuple):
    """A sample as the choice sees it; ``stated``: feedback scored it."""

    id: int
    owner: str
    stated: bool


def most(share: float, batch: int) -> int:
    """Return how many samples of a batch a share allows, rounded up."""
    return math.ceil(Decimal(str(share)) * batch)


def choose(ready: Sequence[Candidate], held: Sequence[Candidate], batch: int, quota: Quota) -> list[int]:
    """Return the ids of the ready samples that join a batch.

    Args:
        ready: the samples to choose from, oldest first.
        held: the samples that the batch has already.
        batch: number of samples of a full batch.
        quota: the shares.
    """
    wanted = max(0, batch - len(held))
    if len(ready) <= wanted or len({sample.owner for sample in ready}) == 1:
        return [sample.id for sample in ready[:wanted]]
    samples = Counter(sample.owner for sample in held)
    stated = Counter(sample.owner for sample in held if sample.stated)
    most_samples, most_stated = most(quota.owner, batch), most(quota.feedback, batch)
    chosen: list[int] = []

    def take(sample: Candidate) -> None:
        chosen.append(sample.id)
        samples[sample.owner] += 1
        stated[sample.owner] += sample.stated

    def take_allowed(left: Sequence[Candidate], allowed: Callable[[Candidate], bool]) -> list[Candidate]:
        """Take allowed samples, oldest first, and return the others."""
        others: list[Candidate] = []
        for sample in left:
            if len(chosen) < wanted and allowed(sample):
                take(sample)
            else:
                others.append(sample)
        return others

    def within_share(sample: Candidate) -> bool:
        return samples[sample.owner] < most_samples

    def within_both(sample: Candidate) -> bool:
        return within_share(sample) and not (sample.stated and stated[sample.owner] >= most_stated)

    left = take_allowed(take_allowed(ready, within_both), within_share)
    queues: dict[str, deque[Candidate]] = {}
    for sample in left:
        queues.setdefault(sample.owner, deque()).append(sample)
    next_up = [(samples[owner], queue[0].id, owner) for owner, queue in queues.items()]
    heapq.heapify(next_up)
    while len(chosen) < wanted:
        _, _, owner = heapq.heappop(next_up)
        take(queues[owner].popleft())
        if queues[owner]:
            heapq.heappush(next_up, (samples[owner], queues[owner][0].id, owner))
    return chosen
