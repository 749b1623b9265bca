"""Which instances for training are in an evaluation: by id, by repository and commit, by the issue's words, or by the solution.

Pure. What is compared of the solution never leaves this module but as the name of the reason.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agentrl.tasks.swe.instance import Instance


@dataclass(frozen=True, slots=True)
class Overlap:
    """An instance for training, one of the evaluation, and what they have in common."""

    train: str
    test: str
    reason: str

    def __str__(self) -> str:
        """Say it in words."""
        return f"{self.train} is in the evaluation: {self.reason} of {self.test}"


def changed(diff: str) -> str:
    """Return the added and removed lines of a diff, without regard to white space, letter case, place and file."""
    return _plain("\n".join(line for line in diff.split("\n") if re.match(r"[+-](?![+-]{2} )", line)))


def traits(instance: Instance) -> Mapping[str, str]:
    """Return what must not be in both sets, by its name; white space and letter case make no difference."""

    def digest(text: str) -> str:
        return hashlib.sha256(_plain(text).encode()).hexdigest()

    return {
        "the id": digest(instance.id),
        "repository and commit": digest(f"{instance.repo} {instance.commit} {instance.bug}"),
        "the issue": digest(instance.statement),
        "the solution": digest(changed(instance.grading.gold)),
    }


def overlaps(train: Iterable[Instance], test: Iterable[Instance]) -> list[Overlap]:
    """Return each instance for training that is in the evaluation, once."""
    known: dict[tuple[str, str], str] = {}
    for item in test:
        known |= {(reason, trait): item.id for reason, trait in traits(item).items()}
    results: dict[str, Overlap] = {}
    for item in train:
        for reason, trait in traits(item).items():
            if (reason, trait) in known:
                results.setdefault(item.id, Overlap(item.id, known[reason, trait], reason))
    return list(results.values())


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().lower()
