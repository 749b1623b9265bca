"""Many owners talk to one run for some minutes: who was refused, whose adapter answered, and what memory the processes take.

Owners pause between conversations, and train all the while. Every accepted adapter is kept as it appears. After the run each reply
of the ledger is scored by the plain model with the adapter that its turn names: its tokens must have the log probabilities that the
engine reported. Under the base, and under another owner's adapter, they have not; how far off these are says what the check sees.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import load_file
from simulated_users.reading import find_users
from student import Refused
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.people_parts.live import PER_OWNER, LiveRun, live_run, settings_of
from benchmarks.people_parts.opposite import OWNERS
from groundwork.people import mark_of
from lab.tiny_models.build import ensure_built
from openclaw.ledger.store import Ledger
from openclaw.owners import owner_of, root
from openclaw.runtime.where import ARGUMENTS_NAME, CHECKPOINTS_NAME, LEDGER_NAME
from slime.weight_sync.people import CONFIG, WEIGHTS, Book, folder_of, people_folder

KEPT, MAIN = "kept", "main"
BATCH = 8
LOOK_SECONDS, MEMORY_SECONDS = 0.5, 10.0
MOST_ERROR = 1e-3
"""Nats per token between the engine and the plain model, both in float32."""
ROLES = {
    "ray::FSDPTrainActor": "trainer",
    "sglang::scheduler": "engines",
    "slime.backends.sglang_utils.server": "engines",
    "openclaw.runtime": "gateway",
}


@dataclass(frozen=True)
class Sizes:
    """How many owners talk, for how long, and how many seconds each pauses between conversations, on average."""

    owners: int = 30
    minutes: float = 10.0
    pause: float = 15.0


QUICK = Sizes(owners=3, minutes=0.7, pause=1.0)


async def measured(
    run_dir: Path, sizes: Sizes, tell: Callable[[str], None], *, method: str, seed: int
) -> dict[str, Any]:
    """Hold the run and return what is known at its end.

    Raises:
        RunFailed: it did not come up, or ended.
    """
    wishes = find_users(list(OWNERS))
    users = [
        wishes[number % len(wishes)].model_copy(update={"name": f"person-{number}"}) for number in range(sizes.owners)
    ]
    settings = settings_of(method, run_dir, seed, PER_OWNER, (), {"BATCH_SIZE": str(BATCH)}, resume=False)
    load = os.getloadavg()[0]
    async with live_run(settings, users, per_owner=True) as run:
        crowd = Crowd(run, sizes, seed, tell)
        await crowd.hold()
        counts = await run.launched.gateway_counts(run.admin)
        updates, paused = dict(run.updates), run.paused
    return {
        "method": method,
        "owners": sizes.owners,
        "minutes": sizes.minutes,
        "conversations": sum(owner.next_session for owner in run.owners),
        "requests": int(counts["requests"]),
        "refused": int(counts["refused"]) + len(crowd.refused),
        "refusals": crowd.refused[:5],
        "updates": sum(updates.values()),
        "owners with an adapter": len(updates),
        "paused": paused,
        "seconds of a conversation": crowd.spread(),
        "memory": crowd.memory,
        "load_average": [round(load, 1), round(os.getloadavg()[0], 1)],
    }


class Crowd:
    """The talking, the memory and the adapters of a run that is up."""

    def __init__(self, run: LiveRun, sizes: Sizes, seed: int, tell: Callable[[str], None]) -> None:
        self._run, self._sizes, self._tell = run, sizes, tell
        self._random = random.Random(seed)
        self._folder = Path(run.launched.settings.run_dir)
        self._seconds: list[float] = []
        self.refused: list[str] = []
        self.memory: list[dict[str, int]] = []

    async def hold(self) -> None:
        """Talk until the time is over, then return once no conversation goes on."""
        end = time.monotonic() + 60 * self._sizes.minutes

        async def one(owner: Any) -> None:
            await asyncio.sleep(self._random.uniform(0, self._sizes.pause))
            while time.monotonic() < end:
                started, number, owner.next_session = time.monotonic(), owner.next_session, owner.next_session + 1
                try:
                    await owner.student.session(number)
                except Refused as error:
                    self.refused.append(str(error))
                self._seconds.append(time.monotonic() - started)
                await asyncio.sleep(self._random.expovariate(1 / self._sizes.pause))

        watch = asyncio.ensure_future(self._watch(time.monotonic()))
        try:
            await asyncio.gather(*map(one, self._run.owners))
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        self._run.look()
        keep_versions(self._folder)

    async def _watch(self, start: float) -> None:
        next_row = 0.0
        while True:
            keep_versions(self._folder)
            if (now := time.monotonic() - start) >= next_row:
                next_row = now + MEMORY_SECONDS
                self._run.look()
                row = {"second": round(now), **self._megabytes(), "updates": self._run.updates_in_all}
                self.memory.append(row)
                self._tell(f"{len(self._seconds)} conversations, {len(self.refused)} refused, {row}")
            await asyncio.sleep(LOOK_SECONDS)

    def _megabytes(self) -> dict[str, int]:
        """Return the resident memory of the run's processes by role, without pages that other processes share."""
        found: Counter[str] = Counter()
        for process in psutil.Process(os.getpid()).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = " ".join(process.cmdline())
                role = next((role for word, role in ROLES.items() if word in words), None)
                if role is not None:
                    found[role] += process.memory_full_info().uss >> 20
        return dict(sorted(found.items()))

    def spread(self) -> dict[str, float]:
        """Return the median and the largest number of seconds of a conversation."""
        ordered = sorted(self._seconds)
        return {"p50": round(ordered[len(ordered) // 2], 1), "max": round(ordered[-1], 1)}


def keep_versions(run_dir: Path) -> None:
    """Link the file of each accepted version, so that it outlives the ones after it."""
    people = people_folder(run_dir)
    for mark, versions in Book(people).lines().items():
        for version in versions:
            to = run_dir / KEPT / mark / f"{version.number}.safetensors"
            if not to.exists():
                to.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):  # it may have left since the book was read
                    os.link(folder_of(people, version.name) / WEIGHTS, to)
                    shutil.copyfile(folder_of(people, version.name) / CONFIG, run_dir / KEPT / CONFIG)


@dataclass(frozen=True)
class Reply:
    """A reply of the ledger, and who says to have written it."""

    person: str
    version: str
    prompt: list[int]
    ids: list[int]
    log_probs: Tensor


def replies_of(run_dir: Path) -> Iterator[Reply]:
    """Yield the replies of a run's conversations; one of several versions is yielded for each, so that none of them fits."""
    with closing(Ledger(run_dir / CHECKPOINTS_NAME / LEDGER_NAME)) as ledger:
        for record in ledger.views.turn_records():
            turn = record.turn
            if turn.kind != MAIN:
                continue
            for span in turn.weight_versions:
                yield Reply(
                    root(owner_of(turn.session_id)),
                    span.version,
                    list(turn.prompt_ids),
                    list(turn.response_ids),
                    Tensor(turn.response_logprobs),
                )


class Judge:
    """The plain model with the adapters of a run."""

    def __init__(self, run_dir: Path) -> None:
        """Read the model and what the run says of its adapters and its temperature."""
        arguments = json.loads((run_dir / ARGUMENTS_NAME).read_text())
        self._scale = arguments["lora_alpha"] / arguments["lora_rank"]
        self._temperature = float(arguments["rollout_temperature"])
        self._kept = run_dir / KEPT
        self._model = AutoModelForCausalLM.from_pretrained(ensure_built(), dtype=torch.float32)
        self._base = {name: value.clone() for name, value in self._model.state_dict().items()}

    def wear(self, person: str | None, version: str) -> bool:
        """Put an owner's version into the weights, None or version 0: the base; return whether its file is there."""
        self._model.load_state_dict(self._base)
        if person is None or version == "0":
            return True
        file = self._kept / mark_of(person) / f"{version}.safetensors"
        if not file.is_file():
            return False
        adapter = load_file(file)
        for name, module in self._model.named_modules():
            if (lora_a := adapter.get(f"base_model.model.{name}.lora_A.weight")) is not None:
                lora_b = adapter[f"base_model.model.{name}.lora_B.weight"]
                module.weight.data += self._scale * lora_b.float() @ lora_a.float()
        return True

    def error(self, reply: Reply) -> float:
        """Return the largest difference from the log probabilities that the engine reported, in nats."""
        with torch.no_grad():
            logits = self._model(torch.tensor([reply.prompt + reply.ids])).logits[0, len(reply.prompt) - 1 : -1]
        found = (logits / self._temperature).log_softmax(-1).gather(-1, torch.tensor(reply.ids)[:, None])[:, 0]
        return float((found - reply.log_probs).abs().max())


def checked(run_dir: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    """Score every reply under the adapter that its turn names, and return what differs."""
    judge, by_adapter = Judge(run_dir), defaultdict(list)
    for reply in replies_of(run_dir):
        if reply.ids:
            by_adapter[reply.person, reply.version].append(reply)
    errors: list[float] = []
    unkept, foreign = 0, []
    for (person, version), replies in by_adapter.items():
        if not judge.wear(person, version):
            unkept += len(replies)
            continue
        for reply in replies:
            errors.append(judge.error(reply))
            if errors[-1] > MOST_ERROR:
                foreign.append([person, version, round(errors[-1], 5)])
        if len(errors) % 500 < len(replies):
            tell(f"{len(errors)} replies checked, {len(foreign)} by another's adapter")
    own = [key for key in by_adapter if key[1] != "0" and judge.wear(*key)]
    others: list[float] = []
    for place, (person, version) in enumerate(own):
        other = next((key for key in own[place + 1 :] + own[:place] if key[0] != person), None)
        if other is not None and judge.wear(*other):
            others.append(judge.error(by_adapter[person, version][0]))
    return {
        "replies": len(errors),
        "of own adapters": sum(len(replies) for (_, version), replies in by_adapter.items() if version != "0"),
        "adapters": len(own),
        "not checked, adapter not kept": unkept,
        "largest error in nats": max(errors, default=0.0),
        "by a foreign adapter": len(foreign),
        "examples": foreign[:5],
        "error under another owner's adapter": {
            "replies": len(others),
            "seen": sum(error > MOST_ERROR for error in others),
            "least": min(others, default=None),
        },
    }
