"""The fast tier: many kills of stand-ins and of the real runtime process, with a check after each."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.fault_parts.checks import Checker, View, journal_lines, say_at_once
from benchmarks.fault_parts.clients import Clients
from benchmarks.fault_parts.stage import VICTIMS, Stage, wait_until
from benchmarks.fault_parts.trainer import Weights
from openclaw.training.rollout import LedgerDataSource
from slime.args import Arguments

WEIGHTS = {"runtime": 2, "trainer": 3, "policy": 2, "judge": 2, "writer": 1}
LONGEST_PAUSE_SECONDS = 1.2
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
            time.sleep(rng.uniform(0.0, LONGEST_PAUSE_SECONDS))
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
