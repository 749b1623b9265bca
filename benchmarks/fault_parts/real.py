"""The real tier: kills of every kind of process of `python -m openclaw.launch` on the tiny model, under load.

What the trainer was given is read from the rollout dumps of the run, up to the newest checkpoint. A killed trainer or driver
ends the run; the processes that are left then are counted, and it is resumed.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from benchmarks.fault_parts.checks import Checker, say_at_once
from benchmarks.fault_parts.clients import Clients, Words
from benchmarks.fault_parts.trainer import Weights
from benchmarks.machine import REPOSITORY
from groundwork.network import find_available_port
from lab.testkit.live_run import LiveRun, wait_until
from lab.testkit.processes import alive
from openclaw.ledger.store import Ledger

ENDS_THE_RUN = ("trainer", "driver")
KINDS = ("runtime", "judge", "policy", "policy in an update", *ENDS_THE_RUN)
BATCH_SIZE = 8
CLIENTS = 6
ENGINE_WAIT_SECONDS = 240
SETTINGS = {
    "BATCH_SIZE": BATCH_SIZE,
    "NUM_ROLLOUT": 100_000,
    "SAVE_INTERVAL": 2,
    "OPENCLAW_ENGINE_WAIT_SECONDS": ENGINE_WAIT_SECONDS,
}


class RealRun:
    """Owns the run that is up, and the times at which the gateway was not."""

    def __init__(self, folder: Path, model: Path) -> None:
        """Prepare; nothing is started."""
        self.folder = folder
        self.dumps = folder / "dumps"
        self.checkpoints = folder / "checkpoints"
        self.down: list[tuple[float, float | None]] = []
        self.orphans = 0
        self._model = model
        self._port = find_available_port()
        self._seen: dict[tuple[int, int], list[int]] = {}
        self.run = self._start()

    def _start(self, *flags: str) -> LiveRun:
        dumps = ("--save-debug-rollout-data", str(self.dumps / "{rollout_id}.pt"), "--max-trainer-restarts", "0")
        return LiveRun(REPOSITORY, self.folder, self._model, "combine", *dumps, *flags, **SETTINGS, PORT=self._port)

    def url(self) -> str:
        """Address of the gateway, the same for every run."""
        return f"http://127.0.0.1:{self._port}"

    def checkpoint(self) -> Weights:
        """Return what the newest checkpoint was trained on."""
        import torch

        latest = self.checkpoints / "latest_checkpointed_iteration.txt"
        last = int(latest.read_text()) - 1 if latest.exists() else -1
        trained = []
        for rollout_id in range(last + 1):
            path = self.dumps / f"{rollout_id}.pt"
            key = (rollout_id, path.stat().st_mtime_ns)
            if key not in self._seen:
                samples = torch.load(path, weights_only=False)["samples"]
                self._seen[key] = [sample["metadata"]["ledger_id"] for sample in samples]
            trained += self._seen[key]
        return Weights(last, trained)

    def find(self, kind: str) -> psutil.Process | None:
        """Return the process to kill, once it is there and, for an update or a step, in the middle of one."""
        if kind == "driver":
            return psutil.Process(self.run.process.pid)
        if kind == "trainer":
            return self.run.trainer_in_a_step()
        if kind == "policy in an update" and self._titled("FSDPTrainActor.update_weights") is None:
            return None
        if kind == "runtime":
            return self._titled("-m openclaw.runtime")
        role = "prm" if kind == "judge" else "policy"
        urls = [line.split()[-1] for line in self.run.text().splitlines() if line.startswith(f"{role} engine: ")]
        return self._titled(f"--port {urls[-1].rpartition(':')[2]} ") if urls else None

    def _titled(self, words: str) -> psutil.Process | None:
        for process in self.run.family():
            try:
                if words in " ".join(process.cmdline()) + " ":
                    return process
            except psutil.Error:
                continue
        return None

    def kill(self, kind: str) -> None:
        """End one process with SIGKILL and wait until the run has noticed and goes on, or was resumed."""
        process = wait_until(lambda: self.find(kind), lambda: f"a process to kill: {kind}\n{self.run.text()[-2000:]}")
        family, steps = self.run.family(), len(self.run.steps())
        if kind in ("runtime", *ENDS_THE_RUN):
            self.down.append((time.monotonic(), None))
        process.kill()
        if kind in ENDS_THE_RUN:
            self.run.process.wait(120)
            self.orphans += len(alive(family))
            resume = ("--resume",) if (self.checkpoints / "latest_checkpointed_iteration.txt").exists() else ()
            self.run, steps = self._start(*resume), 0
        self.run.wait_ready()
        if self.down and self.down[-1][1] is None:
            self.down[-1] = (self.down[-1][0], time.monotonic())
        wait_until(lambda: len(self.run.steps()) > steps + 1, lambda: f"two more steps:\n{self.run.text()[-3000:]}")

    def down_between(self, start: float, end: float) -> bool:
        """Whether the gateway was down at some moment between two times of the monotonic clock."""
        return any(since <= end and (until is None or until >= start) for since, until in self.down)

    def stop(self) -> int:
        """End the run as a user does and return its exit status."""
        family = self.run.family()
        self.run.process.send_signal(signal.SIGTERM)
        status = self.run.process.wait(180)
        self.orphans += len(alive(family))
        return status


def run_real(folder: Path, kills: int, seed: int, say: Callable[[str], None] = say_at_once) -> dict[str, Any]:
    """Kill ``kills`` processes of each kind and return what was found.

    Args:
        folder: empty or missing; the runs write there.
        kills: per kind of process.
        seed: of the order and the moments.
        say: gets a line per kill.
    """
    sys.path.append(str(REPOSITORY / "openclaw-test"))
    from lab.tiny_models.build import ensure_built

    rng, started = random.Random(seed), time.monotonic()
    real = RealRun(folder, ensure_built(0))
    try:
        real.run.wait_ready()
        checker = Checker(real.checkpoints / "ledger.sqlite", real.checkpoint)
        clients = Clients(real.url(), CLIENTS, seed, student_words(), patience=2.0 * ENGINE_WAIT_SECONDS)
        clients.start()
        wait_until(lambda: len(real.run.steps()) >= 3, lambda: f"three steps:\n{real.run.text()[-3000:]}")
        order = list(KINDS) * kills
        rng.shuffle(order)
        for number, kind in enumerate(order, 1):
            time.sleep(rng.uniform(0.0, 3.0))
            begun = time.monotonic()
            real.kill(kind)
            checker.after_kill(clients.journal.replies, clients.journal.answered)
            say(f"{number:4d}  {kind:20s} {time.monotonic() - begun:6.1f} s  {checker.findings.counts()}")
        clients.stop()
        status = real.stop()
    finally:
        if real.run.process.poll() is None:
            real.run.process.kill()
    checker.after_kill(clients.journal.replies, clients.journal.answered)
    ledger = Ledger(real.checkpoints / "ledger.sqlite")
    ledger.samples.reconcile(real.checkpoint().rollout_id)
    ledger.close()
    view = checker.at_the_end(set())
    sizes = Counter(real.checkpoint().trained)
    refused = clients.refused(real.down_between)
    return {
        "kills": dict(Counter(order)),
        "seed": seed,
        "seconds": round(time.monotonic() - started, 1),
        **clients.summary(refused),
        "judged_turns": len(view.judged()),
        "trained_samples": len(sizes),
        "steps": real.checkpoint().rollout_id + 1,
        "exit_status": status,
        **checker.findings.counts(),
        "refused_requests": len(refused),
        "orphans": real.orphans,
        "words": sorted(set(refused))[:5],
    }


def student_words() -> Words:
    """What the simulated student asks and says; it dislikes bold text and numbered lists."""
    from word_problems.feedback import approval, complaint
    from word_problems.problems import draw_short
    from word_problems.replies import follows_rule

    def reaction(rng: random.Random, reply: str) -> str:
        if follows_rule(reply):
            return approval(rng, "held", draw_short(rng, "held").question)
        return complaint(rng, "held")

    return Words(lambda rng: draw_short(rng, "held").question, reaction)
