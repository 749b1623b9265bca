"""What a run did, read from its records of episodes: nothing here is taken from what a program prints.

An episode of the evaluation belongs to ``before`` or ``after`` by the weights that sampled it. Of a sample that a continued run
played again, the last episode counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.rollout.pictures import parts_of
from agentrl.rollout.records import FOLDER, Episode, names, read


@dataclass(frozen=True)
class Outcome:
    """One finished episode.

    Attributes:
        name: of its record.
        task: its task's name.
        evaluated: whether it is of an evaluation.
        version: of the weights that sampled its first reply.
        solved: whether the environment's verdict is full marks.
        tokens: sampled ones.
        scores: the judge's, of the steps that have one.
        votes: number of valid votes, and of all.
    """

    name: str
    task: str
    evaluated: bool
    version: int
    solved: bool
    tokens: int
    scores: tuple[float, ...]
    votes: tuple[int, int]

    def of(self, families: Sequence[str]) -> bool:
        """Return whether the task is of one of the families."""
        return any(family in self.task.split("/") for family in families)


class Outcomes:
    """The episodes of a run so far; `look` reads the new ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._done: set[str] = set()
        self.found: list[Outcome] = []
        self.lost = 0

    def look(self) -> None:
        """Read the records that have ended since the last look."""
        if not (self._folder / FOLDER).exists():
            return
        for name in names(self._folder):
            if name in self._done:
                continue
            episode = read(self._folder, name, tokens=False)
            if episode.first("lost"):
                self.lost += 1
                self._done.add(name)
            elif episode.first("end"):
                self.found.append(_outcome(episode))
                self._done.add(name)

    @property
    def trained(self) -> list[Outcome]:
        """Episodes that were sampled for training."""
        return _newest(each for each in self.found if not each.evaluated)

    def evaluated(self, last: bool) -> list[Outcome]:
        """Return the episodes of the evaluation before the first update, or of the last one, after an update."""
        found = [each for each in self.found if each.evaluated]
        versions = sorted({each.version for each in found})
        wanted = versions[-1:] if last and len(versions) > 1 else [] if last else versions[:1]
        return _newest(each for each in found if each.version in wanted)


def _newest(found: Iterable[Outcome]) -> list[Outcome]:
    """Return the last episode of each sample, in the order in which they ended; a record's name is ``SAMPLE-CHANCE``."""
    newest: dict[str, Outcome] = {}
    for each in found:
        sample = each.name.rpartition("-")[0]
        newest.pop(sample, None)
        newest[sample] = each
    return [*newest.values()]


def share(found: Sequence[Outcome]) -> float | None:
    """Return the share of solved episodes; None without any."""
    return round(sum(each.solved for each in found) / len(found), 4) if found else None


def percent(value: float | None) -> str:
    """Return a share as a person reads it."""
    return "-" if value is None else f"{value:.0%}"


def transcript(folder: Path, name: str) -> str:
    """Return what was said in an episode, after the system prompt."""
    lines: list[str] = []
    for event in read(folder, name, tokens=False).events:
        if event["kind"] == "reset":
            asked = [message for message in event["messages"] if message["role"] == "user"]
            lines += [part.get("text", "(picture)").strip() for message in asked for part in parts_of(message)]
        elif event["kind"] == "action":
            action: dict[str, Any] = event["action"]
            arguments = " ".join(str(value) for value in action.get("arguments", {}).values())
            lines.append(f"  {action['tool']}: {arguments}" if "tool" in action else f"  says: {action['text']}")
        elif event["kind"] == "malformed":
            lines.append("  (a call that cannot be read)")
        elif event["kind"] == "observation":
            lines += [f"    {line}" for line in event["text"].splitlines()]
        elif event["kind"] == "verdict":
            lines.append(f"  verdict: {event['score']}")
    return "\n".join(lines)


def _outcome(episode: Episode) -> Outcome:
    replies = [event for event in episode.events if event["kind"] == "policy"]
    judged = [event for event in episode.events if event["kind"] == "judge"]
    votes = [vote for event in judged for vote in event["votes"]]
    spans = replies[0]["weight_spans"] if replies else []
    return Outcome(
        name=episode.name,
        task=episode.first("reset")["task_id"],
        evaluated=episode.name.startswith("eval-"),
        version=int(spans[0][0]) if spans else 0,
        solved=(episode.first("verdict").get("score") or 0.0) >= 1,
        tokens=sum(event["tokens"] for event in replies),
        scores=tuple(event["score"] for event in judged if event["score"] is not None),
        votes=(sum(vote is not None for vote in votes), len(votes)),
    )
