"""A live tiny run with many owners: its processes, who talks, and what the ledger says of each.

Guarantees: the run is the real one (launcher, SGLang, Ray, FSDP2, gateway, judge, ledger), and ends with the block of `live_run`.
Every owner has a key of their own. Nothing that is scored is trained: scores are side turns without lessons, greedy.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asking import server_client
from measure import Item, measure
from simulated_users.user import User
from student import Student

from groundwork.network import find_available_port
from groundwork.paused import paused_people
from lab.personal.run import ADMIN, Trainer, write_keys
from lab.tiny_demo.launched import ENDLESS, MODEL_NAME, LaunchedRun, RunFailed, Settings
from lab.tiny_demo.options import method_of
from lab.tiny_models.build import ensure_built
from openclaw.ledger.store import Ledger

BATCHES = "batches"
"""Folder of a run with every batch as its trainer got it, see `benchmarks.people_parts.replay`."""
PER_OWNER, SHARED = "per-owner", "shared"
LOOK_SECONDS = 0.3
REPLY_SECONDS = 300.0


@dataclass
class Owner:
    """Somebody who talks to the run.

    Attributes:
        user: rule and words.
        student: holds the conversations.
        client: with the owner's key.
        next_session: number of the next conversation.
        scores: of first replies, oldest first.
    """

    user: User
    student: Student
    client: Any
    next_session: int = 0
    scores: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the owner's key."""
        return self.user.name


class LiveRun:
    """A run that is up, as its owners and its ledger show it."""

    def __init__(self, run: LaunchedRun, ledger: Ledger, owners: Sequence[Owner], admin: str, per_owner: bool) -> None:
        """Take the parts; ``admin``: a key that reads the metrics; ``per_owner``: whether each owner has an adapter."""
        self.launched, self.ledger, self.owners, self._per_owner = run, ledger, list(owners), per_owner
        self.trainer = Trainer(run, ledger, admin)
        self.admin = admin
        self.updates: Counter[str] = Counter()
        """Live updates of each owner; with one adapter for all, of everybody under each name."""

    @property
    def updates_in_all(self) -> int:
        """Live updates of the run."""
        return self.trainer.updates

    def look(self) -> None:
        """Read the updates again.

        Raises:
            RunFailed: the run has ended, or its training is paused.
        """
        self.launched.check_trains()
        steps = self.ledger.views.step_records()
        if self._per_owner:
            self.updates = Counter(step["person"] for step in steps)
        else:
            self.updates = Counter({owner.name: len(steps) for owner in self.owners})

    @property
    def paused(self) -> list[str]:
        """Return why whose training is paused."""
        return [str(note) for note in paused_people(self.launched.settings.run_dir).values()]

    def enough(self, owner: Owner, updates: int) -> bool:
        """Return whether an owner has so many updates, or the samples for them; with one adapter, whether all together have."""
        person = owner.name if self._per_owner else None
        waiting = self.ledger.samples.ready_count(person) // self.trainer.batch
        return self.updates[owner.name] + waiting >= updates

    async def talk(
        self, targets: Mapping[str, int], conversations: int, tell: Callable[[str], None], until: float
    ) -> None:
        """Have owners talk, each in ``conversations`` at a time, until each has as many updates as ``targets`` says by name.

        At the monotonic time ``until`` no conversation begins any more.

        Returns once the run has learned from all of it.

        Raises:
            Refused: a request was refused.
            RunFailed: the run ended or stands still, or somebody's training is paused.
        """
        self.look()

        async def looking() -> None:
            before = -1
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                self.look()
                if self.paused:
                    raise RunFailed("; ".join(self.paused))
                if (done := sum(self.updates.values())) >= before + len(self.owners):
                    tell(" ".join(f"{name} {self.updates[name]}" for name in targets))
                    before = done

        async def one(owner: Owner) -> None:
            while time.monotonic() < until and not self.enough(owner, targets[owner.name]):
                number, owner.next_session = owner.next_session, owner.next_session + 1
                await owner.student.session(number)

        look = asyncio.ensure_future(looking())
        talks = [one(owner) for owner in self.owners if owner.name in targets for _ in range(conversations)]
        everybody = asyncio.gather(*talks)
        done, _ = await asyncio.wait({look, everybody}, return_when=asyncio.FIRST_COMPLETED)
        for other in (look, everybody):
            if other not in done:
                other.cancel()
        await asyncio.gather(look, everybody, return_exceptions=True)
        for task in done:
            task.result()
        await self.trainer.settle()
        self.look()

    async def score(self, owner: Owner, items: list[Item], parallel: int) -> dict[str, Any]:
        """Return how an owner likes greedy first replies to held-out problems; ``replies`` has a digest of each text.

        Raises:
            MeasureError: a request was refused.
        """
        greedy = owner.user.model_copy(update={"temperature": 0.0})
        found = await measure(owner.client, MODEL_NAME, items, parallel, user=greedy)
        return {
            "updates": self.updates[owner.name],
            "in_all": self.updates_in_all,
            "version": found.weight_version,
            "problems": len(items),
            "liked": sum(reply.good for reply in found.replies),
            "right": sum(reply.right for reply in found.replies),
            "degenerate": sum(reply.degenerate for reply in found.replies),
            "replies": [hashlib.sha256(reply.text.encode()).hexdigest()[:8] for reply in found.replies],
        }


def settings_of(
    method: str,
    run_dir: Path,
    seed: int,
    adapters: str,
    flags: Sequence[str],
    variables: Mapping[str, str],
    *,
    resume: bool,
) -> Settings:
    """Return a run's settings: LoRA, no gate, no lessons, and every batch kept."""
    defaults = {"ADAPTERS": adapters, "USE_LORA": "1", "GATE": "0", "OPENCLAW_LESSONS": "off", "SAVE_INTERVAL": "1"}
    kept = ("--save-debug-rollout-data", str(run_dir / BATCHES / "{rollout_id}.pt"))
    return Settings(
        *(method_of(method)[0], ENDLESS, seed, find_available_port(), run_dir, ensure_built()),
        extra=(*kept, *flags),
        resume=resume,
        defaults=defaults | variables,
    )


@asynccontextmanager
async def live_run(settings: Settings, users: Sequence[User], *, per_owner: bool) -> AsyncIterator[LiveRun]:
    """Start a run with a key for each user, and end it with the block.

    Raises:
        RunFailed: it does not come up.
    """
    run = LaunchedRun(settings)
    keys = write_keys(settings.run_dir, users)
    async with AsyncExitStack() as stack:
        owners = []
        for user in users:
            client = await stack.enter_async_context(server_client(settings.base_url, REPLY_SECONDS, keys[user.name]))
            owners.append(Owner(user, Student(client, MODEL_NAME, seed=settings.seed, user=user), client))
        try:
            run.start()
            await run.wait_ready()
            with closing(Ledger(settings.ledger)) as ledger:
                yield LiveRun(run, ledger, owners, keys[ADMIN], per_owner)
        finally:
            await asyncio.shield(asyncio.to_thread(run.stop))
