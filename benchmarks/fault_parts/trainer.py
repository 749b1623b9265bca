"""A trainer without a model: leases, trains, pushes and saves as `slime/train_async.py` does, through the real data source.

`python -m benchmarks.fault_parts.trainer --folder DIR --policy-url URL ...`. Its weights are the list of the samples it was
trained on, so a checkpoint says what a model would have seen. It goes on from its checkpoint when there is one. Guarantees:
the checkpoint appears in one piece before the ledger hears of it, as the real one does; SIGTERM ends the step and saves.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from groundwork.process import watch_lifeline
from openclaw.training.rollout import LedgerDataSource, collect
from slime.args import Arguments

CHECKPOINT = "trainer.json"
PUSH_SECONDS = 60.0


@dataclass
class Weights:
    """What a checkpoint holds: the last rollout in it, and the ledger id of every sample trained, in order."""

    rollout_id: int = -1
    trained: list[int] = field(default_factory=list)

    @classmethod
    def load(cls, folder: Path) -> Weights:
        """Return the checkpoint of a folder, or the initial weights."""
        path = folder / CHECKPOINT
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def save(self, folder: Path) -> None:
        """Write the checkpoint in one piece."""
        part = folder / f"{CHECKPOINT}.part"
        with part.open("w") as file:
            json.dump(asdict(self), file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(folder / CHECKPOINT)


class NoRuntime:
    """Stands for the supervisor of a runtime process that is somebody else's."""

    def check(self) -> None:
        """The runtime is looked after elsewhere."""


class Trainer:
    """Owns the weights, and the thread that leases the next batch while this one trains."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.folder: Path = arguments.folder
        self.policy_url: str = arguments.policy_url
        self.save_interval: int = arguments.save_interval
        self.step_seconds: float = arguments.step_seconds
        self.args = Arguments(
            save=str(self.folder),
            run_dir=str(self.folder),
            rollout_batch_size=arguments.batch_size,
            max_weight_staleness=None,
            stale_samples="drop",
        )
        self._client = httpx.Client(timeout=5, trust_env=False)
        self.source = LedgerDataSource(self.args)
        self.weights = Weights.load(self.folder)
        self.saved = self.weights.rollout_id
        self.source.load(self.weights.rollout_id)
        self.stopping = False

    def stop(self, *_: Any) -> None:
        """End after the step that is under way."""
        self.stopping = True
        self.source.stopped.set()

    def pause(self) -> None:
        """Take a moment, so that a kill can fall between any two stages."""
        time.sleep(random.uniform(0.0, self.step_seconds))

    def run(self) -> None:
        """Train until told to stop, then save."""
        with ThreadPoolExecutor(1) as pool:
            try:
                for rollout_id, samples in self._batches(pool):
                    self.train(rollout_id, samples)
                    if (rollout_id + 1) % self.save_interval == 0:
                        self.save()
            except InterruptedError:
                pass
        if self.saved != self.weights.rollout_id:
            self.save()

    def _batches(self, pool: ThreadPoolExecutor) -> Iterator[tuple[int, list[Any]]]:
        rollout_id = self.weights.rollout_id + 1
        batch = pool.submit(self._collect, rollout_id)
        while not self.stopping:
            samples = batch.result()
            batch = pool.submit(self._collect, rollout_id + 1)
            yield rollout_id, samples
            rollout_id += 1

    def _collect(self, rollout_id: int) -> list[Any]:
        samples, _, _ = collect(self.args, rollout_id, self.source, NoRuntime())  # type: ignore[arg-type]
        return samples

    def train(self, rollout_id: int, samples: list[Any]) -> None:
        """Take the step and make it live."""
        self.pause()
        self.weights.trained += [sample.metadata["ledger_id"] for sample in samples]
        self.weights.rollout_id = rollout_id
        self.pause()
        self._push(str(rollout_id + 1))
        self.source.weights_live(rollout_id, str(rollout_id + 1))

    def _push(self, version: str) -> None:
        """Set the version of the policy engine, waiting for one that is being started again."""
        deadline = time.monotonic() + PUSH_SECONDS
        while time.monotonic() < deadline and not self.stopping:
            try:
                url = f"{self.policy_url}/update_weight_version"
                self._client.post(url, json={"new_version": version}).raise_for_status()
                return
            except httpx.TransportError:
                time.sleep(0.05)

    def save(self) -> None:
        """Write the checkpoint, then tell the ledger, with time for a kill in between."""
        self.pause()
        self.weights.save(self.folder)
        self.pause()
        self.source.save(self.weights.rollout_id)
        self.saved = self.weights.rollout_id


def main() -> int:
    """Run the process."""
    watch_lifeline()
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--policy-url", required=True)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--save-interval", type=int, default=2)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    trainer = Trainer(parser.parse_args())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, trainer.stop)
    print(f"ready at rollout {trainer.weights.rollout_id}", flush=True)
    trainer.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
