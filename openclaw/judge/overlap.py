"""Chooses one of several hints by how far the teacher that reads it agrees with the policy.

A hint is the better for distillation, the more of the policy's most likely tokens are the teacher's too: there the two
distributions can be compared. The overlap of a hint at a position is ``|topk(pi_old) & topk(pi_T under the hint)|``
(OpenClaw-RL, arXiv 2603.10165v2).

* ``sequence_optimal``: the hint with the largest overlap over the whole reply.
* ``token_optimal``: at each position the hint with the largest overlap there.
* ``shortest``: the hint with the fewest characters; needs no teacher.

Guarantees: of equals the shortest hint wins, then the first, so the choice does not depend on the order of answers that say
the same. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from openclaw.ledger.records import Vote
from openclaw.method import HintChoice

MOST_CANDIDATES = 3

Ids = Sequence[Sequence[int]]
"""Token ids, a row per position."""


def candidates(votes: Iterable[Vote], choice: HintChoice) -> list[str]:
    """Return up to `MOST_CANDIDATES` different accepted hints, the shortest first; one of them for ``shortest``."""
    hints = list(dict.fromkeys(vote.hint for vote in votes if vote.hint is not None))[:MOST_CANDIDATES]
    return sorted(hints, key=len)[: 1 if choice == "shortest" else None]


def overlaps(student: Ids, teacher: Ids) -> list[int]:
    """Return for each position how many of the student's tokens are among as many of the teacher's likeliest."""
    return [len({*own} & {*other[: len(own)]}) for own, other in zip(student, teacher, strict=True)]


def choose(choice: HintChoice, student: Ids, teachers: Sequence[Ids]) -> list[int]:
    """Return for each position the index of the teacher whose hint counts there; the first of equals."""
    found = [overlaps(student, teacher) for teacher in teachers]
    if choice == "token_optimal":
        return [max(range(len(found)), key=lambda n: found[n][position]) for position in range(len(student))]
    best = max(range(len(found)), key=lambda n: sum(found[n]))
    return [best] * len(student)
