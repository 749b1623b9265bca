"""The fast tier: many kills of stand-ins and of the real runtime process, with a check after each.

The processes of the fast tier: real gateway, judge worker and ledger between stand-ins for engines and trainer.

Guarantees: a part that is killed is started again, the runtime by its real supervisor; every process that was ever started is
known, so that what outlives the stage is found. Owns the processes; leaving the ``with`` block ends them.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.fault_parts.checks import Checker, View, journal_lines, say_at_once
from benchmarks.fault_parts.clients import Clients
from benchmarks.fault_parts.trainer import Weights
from benchmarks.machine import REPOSITORY
from groundwork.network import find_available_port
from groundwork.process import ChildProcess, group_alive, spawn
from openclaw.runtime.process import RuntimeSupervisor
from openclaw.training.rollout import LedgerDataSource
from slime.args import Arguments

METHOD = "openclaw_combine_method.Combine"
VICTIMS = ("runtime", "trainer", "policy", "judge", "writer")
READY = b"ready"
READY_SECONDS = 120.0
ORPHAN_SECONDS = 15.0


class Stage:
    """Enter it to start everything; ``kill`` ends a part with SIGKILL and ``revive`` starts it again."""

    def __init__(self, folder: Path, tokenizer: Path, *, batch_size: int = 4, save_interval: int = 2) -> None:
        """Prepare; nothing is started.

        Args:
            folder: ledger, checkpoint, journals and logs go there.
            tokenizer: a checkpoint folder; only its tokenizer is used.
            batch_size: samples per step.
            save_interval: steps per checkpoint.
        """
        self.folder = folder
        self.ledger_path = folder / "ledger.sqlite"
        self.journal_path = folder / "writer.journal"
        self.runtime_down: list[tuple[float, float | None]] = []
        self._client = httpx.Client(timeout=2, trust_env=False)
        self._groups: list[int] = []
        self._children: dict[str, ChildProcess] = {}
        self._log_starts: dict[str, int] = {}
        self._ports = {name: find_available_port() for name in ("policy", "judge", "runtime")}
        helper = [sys.executable, "-m", "lab.testkit.policy_and_judge", "--tokenizer", str(tokenizer)]
        parts = [sys.executable, "-m"]
        trainer = ["--folder", str(folder), "--policy-url", self.url("policy"), "--batch-size", str(batch_size)]
        self._commands: Mapping[str, list[str]] = {
            "policy": [*helper, "--port", str(self._ports["policy"]), "--version-file", str(folder / "version")],
            "judge": [*helper, "--port", str(self._ports["judge"])],
            "runtime": [sys.executable, "-m", "openclaw.runtime"],
            "trainer": [*parts, "benchmarks.fault_parts.trainer", *trainer, "--save-interval", str(save_interval)],
            "writer": [
                *(*parts, "benchmarks.fault_parts.writer", "--ledger", str(self.ledger_path)),
                *("--journal", str(self.journal_path)),
            ],
        }
        paths = [str(REPOSITORY / name) for name in (".", "slime", "openclaw-combine")]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PORT": str(self._ports["runtime"]),
            "OPENCLAW_METHOD": METHOD,
            "OPENCLAW_POLICY_URL": self.url("policy"),
            "OPENCLAW_JUDGE_URL": self.url("judge"),
            "OPENCLAW_TOKENIZER": str(tokenizer),
            "OPENCLAW_JUDGE_TOKENIZER": str(tokenizer),
            "OPENCLAW_JUDGE_PROMPTS": "brief",
            "OPENCLAW_MIN_RESPONSE_TOKENS": "2",
            "OPENCLAW_LEDGER": str(self.ledger_path),
            "CONTEXT_LENGTH": "2048",
            "PRM_MAX_NEW_TOKENS": "32",
            "PRM_M": "1",
        }
        self._supervisor = RuntimeSupervisor(
            lambda: self._spawn("runtime"),
            health_url=f"{self.url('runtime')}/healthz",
            log_path=self._log("runtime"),
            poll_seconds=0.05,
            deaths_allowed=1_000_000,
        )

    def url(self, name: str) -> str:
        """Return the address of a part that listens."""
        return f"http://127.0.0.1:{self._ports[name]}"

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _spawn(self, name: str) -> ChildProcess:
        log = self._log(name)
        self._log_starts[name] = log.stat().st_size if log.exists() else 0
        child = spawn(self._commands[name], env=self._environment, log_path=log, name=name)
        self._groups.append(child.pid)
        self._children[name] = child
        return child

    def __enter__(self) -> Stage:
        """Start every part and wait until all of them serve."""
        try:
            for name in VICTIMS:
                if name != "runtime":
                    self._spawn(name)
            self._supervisor.start()
            for name in VICTIMS:
                self.wait_ready(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End every part."""
        self._supervisor.stop()
        for child in self._children.values():
            child.kill()

    # Faults

    def ready(self, name: str) -> bool:
        """Whether a part does its work: it answers, or has said so in its log."""
        if not self._children[name].alive():
            return False
        if name in ("trainer", "writer"):
            return READY in self._log(name).read_bytes()[self._log_starts[name] :]
        route = "healthz" if name == "runtime" else "health"
        try:
            up = self._client.get(f"{self.url(name)}/{route}").status_code == 200
        except httpx.TransportError:
            return False
        if up and name == "runtime" and self.runtime_down and self.runtime_down[-1][1] is None:
            self.runtime_down[-1] = (self.runtime_down[-1][0], time.monotonic())
        return up

    def wait_ready(self, name: str) -> None:
        """Wait until a part does its work.

        Raises:
            TimeoutError: with the end of its log.
        """
        wait_until(lambda: self.ready(name), READY_SECONDS, lambda: f"{name}: {self._children[name].log_tail()}")

    def kill(self, name: str) -> bool:
        """End a part with SIGKILL; return whether nothing that it had started is left."""
        child = self._children[name]
        if name == "runtime":
            self.runtime_down.append((time.monotonic(), None))
        os.kill(child.pid, signal.SIGKILL)
        return holds_within(ORPHAN_SECONDS, lambda: not group_alive(child.pid))

    def revive(self, name: str) -> None:
        """Start a part that was killed again; the runtime's supervisor does so by itself."""
        if name != "runtime":
            self._children[name].kill()
            self._spawn(name)

    def end(self, name: str, number: int = signal.SIGTERM) -> int:
        """Ask a part to end and return its exit status."""
        os.kill(self._children[name].pid, number)
        return self._children[name].wait(READY_SECONDS)

    def down_between(self, start: float, end: float) -> bool:
        """Whether the gateway was down at some moment between two times of the monotonic clock."""
        return any(since <= end and (until is None or until >= start) for since, until in self.runtime_down)

    def orphans(self) -> list[int]:
        """Groups that still have a process some time after the stage was left. Processes of this one count too."""
        holds_within(ORPHAN_SECONDS, lambda: not self._left())
        return self._left()

    def _left(self) -> list[int]:
        left = [group for group in self._groups if group_alive(group)]
        return left + [child.pid for child in psutil.Process().children(recursive=True) if _is_ours(child)]


def _is_ours(process: psutil.Process) -> bool:
    """Whether a process runs a module of `openclaw`; the path of its program says nothing."""
    try:
        return any(word.startswith("openclaw.") for word in process.cmdline())
    except psutil.Error:
        return False


def holds_within(seconds: float, condition: Callable[[], object]) -> bool:
    """Return whether ``condition`` came to hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def wait_until(condition: Callable[[], object], seconds: float, what: Callable[[], str]) -> None:
    """Return once ``condition`` holds.

    Raises:
        TimeoutError: with ``what``.
    """
    if not holds_within(seconds, condition):
        raise TimeoutError(f"after {seconds:g} s: {what()}")


WEIGHTS = {"runtime": 2, "trainer": 3, "policy": 2, "judge": 2, "writer": 1}
MAX_PAUSE_SECONDS = 1.2
DRAIN_SECONDS = 180.0
CLIENTS = 4


def plan(kills: int, rng: random.Random) -> list[str]:
    """Return the victims in order: each once, then at random."""
    first = rng.sample(VICTIMS, min(kills, len(VICTIMS)))
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    return first + rng.choices(names, weights, k=max(0, kills - len(first)))


def run_fast(
    folder: Path, tokenizer: Path, kills: int, seed: int, say: Callable[[str], None] = say_at_once, batch_size: int = 4
) -> dict[str, Any]:
    """Kill ``kills`` times and return the findings.

    Args:
        folder: empty; everything the processes write goes there.
        tokenizer: a checkpoint folder with a tokenizer.
        kills: how many.
        seed: of victims and moments.
        say: gets a line per kill.
        batch_size: samples per step.
    """
    rng, started = random.Random(seed), time.monotonic()
    orphans = 0
    stage = Stage(folder, tokenizer, batch_size=batch_size)
    checker = Checker(stage.ledger_path, lambda: Weights.load(folder))
    with stage:
        clients = Clients(stage.url("runtime"), CLIENTS, seed)
        clients.start()
        order = plan(kills, rng)
        for number, name in enumerate(order, 1):
            stage.wait_ready(name)
            time.sleep(rng.uniform(0.0, MAX_PAUSE_SECONDS))
            orphans += not stage.kill(name)
            _check(checker, clients, stage)
            time.sleep(rng.uniform(0.0, 0.2))
            stage.revive(name)
            say(f"{number:4d}  {name:8s} {checker.findings.counts()}")
        for name in VICTIMS:
            stage.wait_ready(name)
        clients.stop()
        stage.end("writer", signal.SIGKILL)
        _drain(stage, batch_size)
        trainer_status = stage.end("trainer")
        _check(checker, clients, stage)
    args = Arguments(save=str(folder), run_dir=str(folder))
    source = LedgerDataSource(args)
    source.load(Weights.load(folder).rollout_id)
    source.ledger.close()
    view = checker.at_the_end(clients.journal.answered | journal_lines(stage.journal_path))
    refused = clients.refused(stage.down_between)
    return {
        "kills": dict(Counter(order)),
        "seed": seed,
        "seconds": round(time.monotonic() - started, 1),
        **clients.summary(refused),
        "judged_turns": len(view.judged()),
        "trained_samples": len(Weights.load(folder).trained),
        "steps": Weights.load(folder).rollout_id + 1,
        "trainer_exit_status": trainer_status,
        **checker.findings.counts(),
        "refused_requests": len(refused),
        "orphans": orphans + len(stage.orphans()),
        "words": sorted(set(refused))[:5],
    }


def _check(checker: Checker, clients: Clients, stage: Stage) -> None:
    written = journal_lines(stage.journal_path)
    checker.after_kill(clients.journal.replies | written, clients.journal.answered | written)


def _drain(stage: Stage, batch_size: int) -> None:
    """Wait until every next state is judged and every full batch is trained."""

    def quiet() -> bool:
        view = View.read(stage.ledger_path)
        ready = sum(state == "ready" for _, state in view.samples.values())
        return ready < batch_size and not any(state == "pending" for state, _ in view.turns.values())

    wait_until(quiet, DRAIN_SECONDS, lambda: f"not everything was judged and trained, logs in {stage.folder}")
