"""Owners with opposite wishes on one run: what each one's own updates teach, and what those of the others change.

Owners talk in rounds. After each round everybody's first replies to held-out problems are scored. Who likes at least `GOAL` of
them twice in a row is done and talks no more. In the last part one half of the owners talks and the other half is silent, by turns;
the silent ones are scored before and after, greedily and with nobody else talking, so that the replies are comparable word by word.

Guarantees: what is done is in ``benchmark.json`` of the run's folder after each round, so the same command goes on where an
earlier one ended.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from measure import heldout_items
from simulated_users.reading import find_users

from benchmarks.people_parts.live import PER_OWNER, LiveRun, Owner, live_run, settings_of
from groundwork.private_files import write_note

OWNERS = ("student", "list", "boxed", "captain", "doctor", "cheers", "tada", "spelled")
"""Plain prose, a numbered list or a box; two titles; two last words; signs in words."""
GOAL, IN_A_ROW = 0.8, 2
PARALLEL = 16
"""Requests of a score at a time."""
STATE = "benchmark.json"
SESSIONS_OF_A_PART = 10_000


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        most_updates: of each owner.
        round_updates: of each owner between two scores.
        heldout: problems of a score.
        stretch: updates of each talking owner in the last part.
        conversations: of each owner at a time.
    """

    most_updates: int = 24
    round_updates: int = 4
    heldout: int = 32
    stretch: int = 2
    conversations: int = 2


QUICK = Sizes(most_updates=1, round_updates=1, heldout=4, stretch=1)


@dataclass
class Done:
    """What earlier commands did on this run.

    Attributes:
        parts: how often the run was started.
        round: rounds that are over; 0 is the score of the base.
        scores: of each owner.
        silent: for each half that was silent: scores before and after, by owner.
        seconds: in all.
        requests: of all parts.
        refused: of all parts.
    """

    parts: int = 0
    round: int = -1
    scores: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    silent: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    requests: int = 0
    refused: int = 0
    load_average: list[float] = field(default_factory=list)

    @staticmethod
    def of(run_dir: Path) -> Done:
        """Read it; a new one if nothing was done."""
        file = run_dir / STATE
        return Done(**json.loads(file.read_text())) if file.is_file() else Done()

    def is_done(self, name: str) -> bool:
        """Return whether an owner likes enough, twice in a row."""
        last = self.scores.get(name, [])[-IN_A_ROW:]
        return len(last) == IN_A_ROW and all(share(score) >= GOAL for score in last)


def share(score: dict[str, Any]) -> float:
    """Return the liked share of a score."""
    return score["liked"] / score["problems"]


class Talk:
    """The rounds of one command on a run that is up."""

    def __init__(
        self, run: LiveRun, done: Done, sizes: Sizes, adapters: str, most: int | None, tell: Callable[[str], None]
    ) -> None:
        """``most``: updates in all, None: no bound but each owner's."""
        self._run, self._done, self._sizes, self._most, self._tell = run, done, sizes, most, tell
        self._per_owner = adapters == PER_OWNER
        self._until = 0.0
        for owner in run.owners:
            owner.next_session = SESSIONS_OF_A_PART * done.parts  # no conversation of an earlier part goes on

    async def go_on(self, until: float) -> bool:
        """Do what is left, but begin nothing after the monotonic time ``until`` except scores; return whether all is done."""
        self._run.look()
        self._until = until
        while time.monotonic() < until:
            if self._done.round < 0:
                await self._round({})
            elif targets := self._targets():
                await self._round(targets)
            elif len(self._done.silent) < 2:
                await self._silence()
            else:
                return True
        return not self._targets() and len(self._done.silent) == 2

    def _targets(self) -> dict[str, int]:
        """Return how many updates each owner that is not done shall have after the next round."""
        sizes, next_round = self._sizes, self._done.round + 1
        if not self._per_owner:
            wanted = min(next_round * sizes.round_updates * len(self._run.owners), self._most or 10**9)
            left = self._run.updates_in_all < wanted and next_round * sizes.round_updates <= sizes.most_updates
            return {owner.name: wanted for owner in self._run.owners} if left else {}
        return {
            owner.name: self._run.updates[owner.name] + sizes.round_updates
            for owner in self._run.owners
            if not self._done.is_done(owner.name) and self._run.updates[owner.name] < sizes.most_updates
        }

    async def _round(self, targets: dict[str, int]) -> None:
        if targets:
            await self._run.talk(targets, self._sizes.conversations, self._tell, self._until)
        for name, score in (await self._scores(self._run.owners)).items():
            self._done.scores.setdefault(name, []).append(score)
        self._done.round += 1
        self._save()

    async def _silence(self) -> None:
        """Have one half talk, and score the other one before and after. What nothing was learned since was scored already."""
        owners, half = self._run.owners, len(self._done.silent)
        silent, talking = owners[1 - half :: 2], owners[half::2]
        if half == 0:
            before = {owner.name: self._done.scores[owner.name][-1] for owner in silent}
        else:
            before = await self._scores(silent)
        more = self._sizes.stretch * (1 if self._per_owner else len(talking))
        targets = {owner.name: self._run.updates[owner.name] + more for owner in talking}
        start = self._run.updates_in_all
        await self._run.talk(targets, self._sizes.conversations, self._tell, self._until)
        after = await self._scores(silent)
        self._done.silent.append({"others": self._run.updates_in_all - start, "before": before, "after": after})
        self._save()

    async def _scores(self, owners: Sequence[Owner]) -> dict[str, dict[str, Any]]:
        items = heldout_items(self._sizes.heldout)
        found = {}
        for owner in owners:
            found[owner.name] = score = await self._run.score(owner, items, PARALLEL)
            self._tell(
                f"{owner.name} after {score['updates']} updates: {share(score):.2f} liked, {score['right']} right"
            )
        return found

    def _save(self) -> None:
        write_note(self._run.launched.settings.run_dir / STATE, asdict(self._done))


async def measured(
    run_dir: Path,
    names: Sequence[str],
    sizes: Sizes,
    tell: Callable[[str], None],
    *,
    method: str,
    adapters: str,
    seed: int,
    most: int | None,
    seconds: float,
) -> tuple[bool, dict[str, Any]]:
    """Go on with a run for about ``seconds``; return whether all is done, and the record of what is.

    Raises:
        RunFailed, Refused, MeasureError: something did not work.
    """
    done, started, load = Done.of(run_dir), time.monotonic(), os.getloadavg()[0]
    settings = settings_of(method, run_dir, seed, adapters, (), {}, resume=done.parts > 0)
    users = find_users(list(names))
    async with live_run(settings, users, per_owner=adapters == PER_OWNER) as run:
        done.parts += 1
        write_note(run_dir / STATE, asdict(done))
        tell(f"up after {time.monotonic() - started:.0f} s")
        talk = Talk(run, done, sizes, adapters, most, tell)
        try:
            finished = await talk.go_on(started + seconds)
        finally:
            counts = await run.launched.gateway_counts(run.admin)
            done.requests += int(counts["requests"])
            done.refused += int(counts["refused"])
            done.seconds += time.monotonic() - started
            done.load_average += [round(load, 1), round(os.getloadavg()[0], 1)]
            talk._save()
        updates = dict(run.updates)
        in_all, batch = run.updates_in_all, run.trainer.batch
    found = {
        "method": method,
        "adapters": adapters,
        "seed": seed,
        "sizes": asdict(sizes),
        "batch": batch,
        "updates": in_all,
        "requests": done.requests,
        "refused": done.refused,
        "seconds": round(done.seconds),
        "load_average": done.load_average,
        "owners": {user.name: {"wish": user.wish} | of_owner(done, user.name, updates) for user in users},
    }
    return finished, found


def of_owner(done: Done, name: str, updates: dict[str, int]) -> dict[str, Any]:
    """Return what is recorded of an owner: the curve, when the goal was reached, and what others' updates changed."""
    scores = done.scores.get(name, [])
    good = [score["updates"] for score in scores if share(score) >= GOAL]
    twice = [
        score["updates"] for score, following in pairwise(scores) if share(score) >= GOAL and share(following) >= GOAL
    ]
    quiet = [
        drift(before, after)
        for before, after in pairwise(scores)
        if before["version"] == after["version"] and before["updates"]
    ]
    silent = [
        drift(part["before"][name], part["after"][name]) | {"others": part["others"]}
        for part in done.silent
        if name in part["before"]
    ]
    return {
        "updates": updates.get(name, 0),
        "liked": [[score["updates"], round(share(score), 4)] for score in scores],
        "right": [score["right"] for score in scores],
        "degenerate": sum(score["degenerate"] for score in scores),
        "reached_after": good[0] if good else None,
        "twice_in_a_row_after": twice[0] if twice else None,
        "silent": silent,
        "between_rounds": quiet,
    }


def drift(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return what changed between two scores of an owner."""
    same = sum(one == other for one, other in zip(before["replies"], after["replies"], strict=True))
    return {
        "liked": [round(share(before), 4), round(share(after), 4)],
        "version": [before["version"], after["version"]],
        "others": after["in_all"] - before["in_all"],
        "same_replies": same,
        "problems": before["problems"],
    }


def verdict(record: dict[str, Any]) -> dict[str, Any]:
    """Return what the record says about the goals."""
    owners = record["owners"]
    silent = [part for owner in owners.values() for part in owner["silent"]]
    return {
        "reached": sorted(name for name, owner in owners.items() if owner["reached_after"] is not None),
        "reached_twice_in_a_row": sorted(
            name for name, owner in owners.items() if owner["twice_in_a_row_after"] is not None
        ),
        "not_reached": {
            name: max((liked for _, liked in owner["liked"]), default=0.0)
            for name, owner in owners.items()
            if owner["reached_after"] is None
        },
        "largest_drift": max((abs(part["liked"][0] - part["liked"][1]) for part in silent), default=None),
        "replies_that_changed": sum(part["problems"] - part["same_replies"] for part in silent),
        "replies_compared": sum(part["problems"] for part in silent),
    }
