"""What the runs say: means over seeds with intervals. A run that is missing makes a figure partial or empty, and is never guessed.

Definitions:
    sessions: up to and including the third in a row whose first replies follow a user's rule; mean over users, then over seeds.
    capped: a user whose rule was not followed within the counted sessions enters with that number, so the mean is a lower bound.
    score: share of first replies to held-out problems that the user likes and that are not degenerate, pooled over users and seeds.
Intervals at 95 %: bootstrap over seeds for sessions, Wilson over problems for shares. The latter leave out how much seeds differ.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.machine import REPOSITORY
from benchmarks.personal_parts.matrix import BASE, JOINT, SEPARATE, Arm

sys.path.append(str(REPOSITORY / "openclaw-test"))
from intervals import bootstrap_mean, wilson

from lab.personal.run import COUNTED, COUNTED_WITH_LESSONS

Records = Mapping[str, Mapping[str, Any]]
"""Records of runs by the name of their cell."""


@dataclass(frozen=True)
class Sessions:
    """Sessions until a rule is followed.

    Attributes:
        mean, low, high: over seeds; the bounds are None for one seed.
        by_seed: mean over users, by seed.
        wanted: seeds that were asked for.
        capped: users times seeds that never got there.
        most: counted sessions.
    """

    mean: float
    low: float | None
    high: float | None
    by_seed: Mapping[int, float]
    wanted: int
    capped: int
    most: int

    @property
    def told(self) -> str:
        """Return the cell of a table."""
        text = f"{'≥ ' if self.capped else ''}{self.mean:.1f}"
        if self.low is not None and self.high is not None:
            text += f" [{self.low:.1f}, {self.high:.1f}]"
        if len(self.by_seed) < self.wanted:
            text += f", {len(self.by_seed)} of {self.wanted} seeds"
        return text + (f", {self.capped} not within {self.most}" if self.capped else "")


@dataclass(frozen=True)
class Mean:
    """A mean over seeds with its bootstrap interval; the bounds are None for one seed."""

    mean: float
    low: float | None
    high: float | None

    @property
    def told(self) -> str:
        """Return the cell of a table."""
        return f"{self.mean:.1f}" + (f" [{self.low:.1f}, {self.high:.1f}]" if self.low is not None else "")


@dataclass(frozen=True)
class Share:
    """A share of replies with its Wilson interval; ``runs`` of ``wanted`` are in it."""

    hits: int
    problems: int
    runs: int
    wanted: int

    @property
    def mean(self) -> float:
        """Return the share."""
        return self.hits / self.problems

    @property
    def interval(self) -> tuple[float, float]:
        """Return the interval at 95 %."""
        return wilson(self.hits, self.problems)

    @property
    def told(self) -> str:
        """Return the cell of a table."""
        low, high = self.interval
        partial = f", {self.runs} of {self.wanted} runs" if self.runs < self.wanted else ""
        return f"{self.mean:.2f} [{low:.2f}, {high:.2f}]{partial}"


def groups_of(method: str, form: str, users: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the users of each run that a figure needs, per seed."""
    if method == BASE or form == JOINT:
        return [tuple(users)]
    return [(user,) for user in users]


def cell_name(method: str, group: Sequence[str], seed: int, arm: str | None = None) -> str:
    """Return the name of a run's record."""
    return "-".join([method, "+".join(group), f"seed{seed}", *([arm] if arm else [])])


def sessions(
    records: Records, method: str, form: str, users: Sequence[str], seeds: Sequence[int], arm: str | None = None
) -> Sessions | None:
    """Return the sessions of a method; None unless some seed has all its runs."""
    by_seed, capped, most = {}, 0, 0
    for seed in seeds:
        names = [cell_name(method, group, seed, arm) for group in groups_of(method, form, users)]
        if not all(name in records for name in names):
            continue
        counts = []
        for name in names:
            most = records[name]["sizes"]["most_sessions"]
            for user in records[name]["per_user"].values():
                counts.append(user["sessions_to_follow"] or most)
                capped += user["sessions_to_follow"] is None
        by_seed[seed] = statistics.mean(counts)
    if not by_seed:
        return None
    low, high = bootstrap_mean(list(by_seed.values())) if len(by_seed) > 1 else (None, None)
    return Sessions(statistics.mean(by_seed.values()), low, high, by_seed, len(seeds), capped, most)


def share(
    records: Records,
    method: str,
    form: str,
    users: Sequence[str],
    seeds: Sequence[int],
    after: int | str,
    field: str = "liked",
    arm: str | None = None,
) -> Share | None:
    """Return the share of replies whose ``field`` is true in the score ``after``; None if no run measured it.

    ``after`` is a number of updates, or the name of another score.
    """
    hits = problems = runs = 0
    groups = groups_of(method, form, users)
    for seed in seeds:
        for group in groups:
            record = records.get(cell_name(method, group, seed, arm))
            found = [user["scores"].get(str(after)) for user in record["per_user"].values()] if record else []
            if not found or None in found:
                continue
            runs += 1
            hits += sum(score[field] for score in found)
            problems += sum(score["problems"] for score in found)
    return Share(hits, problems, runs, len(seeds) * len(groups)) if runs else None


def complaints(
    records: Records, method: str, form: str, users: Sequence[str], seeds: Sequence[int], arm: str | None = None
) -> Mean | None:
    """Return the complaints until the rule is followed: mean over users, then over seeds; None unless some seed has all runs.

    A user whose rule was not followed enters with the complaints of all counted sessions.
    """
    by_seed: list[float] = []
    for seed in seeds:
        names = [cell_name(method, group, seed, arm) for group in groups_of(method, form, users)]
        if all(name in records for name in names):
            people = [user for name in names for user in records[name]["per_user"].values()]
            by_seed.append(statistics.mean(user["complaints_to_follow"] for user in people))
    if not by_seed:
        return None
    return Mean(statistics.mean(by_seed), *(bootstrap_mean(by_seed) if len(by_seed) > 1 else (None, None)))


@dataclass(frozen=True)
class Updates:
    """What the gate decided about the updates of some runs.

    Attributes:
        accepted: updates that served.
        refused: those that did not.
        compared: accepted ones of which users' opinions told a margin.
        fell: of these, those with a margin that the gate refuses; 0, or the gate does not do what it says.
        lowest: the lowest margin of an accepted update in nats per token, and its standard error; None without any.
    """

    accepted: int
    refused: int
    compared: int
    fell: int
    lowest: tuple[float, float] | None

    @property
    def told(self) -> str:
        """Return the cell of a table."""
        text = f"{self.accepted} accepted, {self.refused} refused"
        if self.lowest is None:
            return text
        return f"{text}; {self.fell} of {self.compared} fell, lowest {self.lowest[0]:+.3f} ± {self.lowest[1]:.3f}"


def updates(
    records: Records, method: str, form: str, users: Sequence[str], seeds: Sequence[int], arm: str | None = None
) -> Updates | None:
    """Return what the gate decided in the runs that there are; None if it decided nothing."""
    names = [cell_name(method, group, seed, arm) for seed in seeds for group in groups_of(method, form, users)]
    found = [each for name in names if name in records for each in records[name].get("gate", ())]
    served = [each for each in found if each["accepted"]]
    told = [(each["margin"], each["error"]) for each in served if each["margin"] is not None]
    fell = sum(each["fell"] for each in served)
    lowest = min(told, default=None)
    return Updates(len(served), len(found) - len(served), len(told), fell, lowest) if found else None


def fewer(one: Sessions | None, other: Sessions | None) -> str:
    """Return whether ``one`` needs fewer sessions than ``other``, as far as the seeds that both have can say."""
    common = sorted(set(one.by_seed) & set(other.by_seed)) if one and other else []
    if one is None or other is None or not common:
        return "not run"
    differences = [one.by_seed[seed] - other.by_seed[seed] for seed in common]
    mean = statistics.mean(differences)
    if len(common) < 3:
        return (
            f"undecided: {mean:+.1f} sessions with {len(common)} seed{'s' * (len(common) > 1)}, and an interval needs 3"
        )
    low, high = bootstrap_mean(differences)
    verdict = "yes" if high < 0 else "no, more" if low > 0 else "undecided"
    return f"{verdict}: {mean:+.1f} sessions [{low:+.1f}, {high:+.1f}]"


def table(
    records: Records, methods: Sequence[str], users: Sequence[str], seeds: Sequence[int], after: Sequence[int]
) -> dict[str, Any]:
    """Return all figures by method and form, as JSON has them; null where nothing was run."""
    return {
        method: {
            form: {
                "sessions": _plain(sessions(records, method, form, users, seeds)),
                "score": {str(n): _share(share(records, method, form, users, seeds, n)) for n in (0, *after)},
                "right_number": {
                    str(n): _share(share(records, method, form, users, seeds, n, "right")) for n in (0, *after)
                },
            }
            for form in (JOINT, SEPARATE)
        }
        for method in methods
    }


def personal_table(records: Records, arms: Sequence[Arm], users: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """Return the figures of `PERSONAL_ARMS` by arm and form, as JSON has them; null where nothing was run."""
    return {
        arm.name: {
            form: {
                "sessions": _plain(sessions(records, arm.method, form, users, seeds, arm.name)),
                "complaints": _plain(complaints(records, arm.method, form, users, seeds, arm.name)),
                "updates": _plain(updates(records, arm.method, form, users, seeds, arm.name)),
                **{
                    f"{field}, {after}": _share(share(records, arm.method, form, users, seeds, after, field, arm.name))
                    for field in ("liked", "right")
                    for after in (0, COUNTED, COUNTED_WITH_LESSONS)
                },
            }
            for form in (JOINT, SEPARATE)
        }
        for arm in arms
    }


def _plain(found: Sessions | Mean | Updates | None) -> dict[str, Any] | None:
    return asdict(found) if found else None


def _share(found: Share | None) -> dict[str, Any] | None:
    if found is None:
        return None
    low, high = found.interval
    return {**asdict(found), "mean": round(found.mean, 4), "low": round(low, 4), "high": round(high, 4)}
