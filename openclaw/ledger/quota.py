"""Which ready samples fill a batch when several owners have some: shares per owner, equal parts over `BATCHES` batches.

Guarantees, while another owner has ready samples left: an owner holds at most its share of the batch, and samples that
the owner scored by feedback at most theirs. The owner's share goes first: when both cannot hold, more feedback is taken.
Within the shares, and where they cannot fill the batch, the owner is next that has had the fewest samples in this batch
and those before it (max-min fairness). So of N owners each gets all that it sends, or at least the N-th part of what is
trained over `BATCHES` batches, however much the others send and however old their samples are.

A batch is full whenever enough samples are ready, so nobody waits for an owner who sends little; an owner who sends most
is most of what is trained. The samples of a single owner are taken oldest first, whatever the shares. The choice is a
pure function of ids.
"""

from __future__ import annotations

import math
import os
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import NamedTuple, cast

from openclaw.config.runtime_variables import RuntimeVariables

BATCHES = 10
"""Batches over which owners get equal parts: the one that is being filled and those before it."""
NOBODY: Mapping[str, int] = {}


@dataclass(frozen=True)
class Quota:
    """Shares of a batch, above 0 and at most 1; 1 means no bound.

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


def choose(
    ready: Sequence[Candidate], held: Sequence[Candidate], batch: int, quota: Quota, recent: Mapping[str, int] = NOBODY
) -> list[int]:
    """Return the ids of the ready samples that join a batch.

    Args:
        ready: the samples to choose from, oldest first.
        held: the samples that the batch has already.
        batch: number of samples of a full batch.
        quota: the shares.
        recent: how many samples of each owner are in the `BATCHES` - 1 batches before.
    """
    wanted = max(0, batch - len(held))
    queues: dict[str, dict[bool, deque[Candidate]]] = {}
    for sample in ready:
        queues.setdefault(sample.owner, {True: deque(), False: deque()})[sample.stated].append(sample)
    if len(ready) <= wanted or len(queues) == 1:
        return [sample.id for sample in ready[:wanted]]
    samples = Counter(sample.owner for sample in held)
    stated = Counter(sample.owner for sample in held if sample.stated)
    most_samples, most_stated = most(quota.owner, batch), most(quota.feedback, batch)

    def within_share(sample: Candidate) -> bool:
        return samples[sample.owner] < most_samples

    def within_both(sample: Candidate) -> bool:
        return within_share(sample) and not (sample.stated and stated[sample.owner] >= most_stated)

    def next_of(owner: str) -> tuple[tuple[int, int, int], Candidate]:
        """Return an owner's next sample after its rank: what the shares allow, then who has had the fewest, then its age."""
        heads = [queue[0] for queue in queues[owner].values() if queue]
        sample = min(heads, key=lambda each: (not within_both(each), each.id))
        tier = 0 if within_both(sample) else 1 if within_share(sample) else 2
        return (tier, recent.get(owner, 0) + samples[owner], sample.id), sample

    chosen: list[int] = []
    while len(chosen) < wanted:
        _, sample = min(map(next_of, queues))
        chosen.append(sample.id)
        samples[sample.owner] += 1
        stated[sample.owner] += sample.stated
        queues[sample.owner][sample.stated].popleft()
        if not any(queues[sample.owner].values()):
            del queues[sample.owner]
    return chosen
