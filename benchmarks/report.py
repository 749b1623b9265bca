"""Time and size of ``openclaw-rl report`` and ``doctor`` on a run of many turns, which the real ledger code writes.

`python -m benchmarks.report [--quick] [--json FILE]`. Conversations of two turns have requests of a few thousand
characters and replies of 200 tokens; 1,000 of the turns are side turns. ``--quick`` writes 20,000 turns, otherwise 100,000.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import track

from benchmarks.machine import describe_machine
from groundwork.command_line import output_file
from groundwork.private_files import write_output
from openclaw.credit.baseline import record_judged
from openclaw.doctor.diagnose import diagnose
from openclaw.ledger.records import Turn, Verdict, VersionSpan, Vote
from openclaw.ledger.store import Ledger
from openclaw.report.build import build
from openclaw.runs.folder import open_run
from openclaw.training.samples import make_sample
from slime.args import Arguments
from slime.tracking.trackers import JsonLines

QUICK, FULL = 20_000, 100_000
BATCH = 16
SIDE_EVERY = 20
PER_TRANSACTION = 200
PROMPT_TOKENS, REPLY_TOKENS = 600, 200
WORDS = [
    "please",
    "add",
    "sum",
    "list",
    "short",
    "plain",
    "result",
    "apples",
    "table",
    "reason",
    "number",
    "answer",
    "again",
    "once",
    "more",
    "than",
    "before",
]
SECONDS_PER_TURN = 20.0
RUNS = 3
START = 1.7e9
"""When the made-up run began, seconds since the epoch."""


def text(rng: random.Random, words: int) -> str:
    """Return a made-up text."""
    return " ".join(rng.choices(WORDS, k=words))


def turns(rng: random.Random, count: int, prompt: str = "") -> Iterator[tuple[Turn, str]]:
    """Yield turns with the reaction to each; the liked share rises with the updates. Requests begin with ``prompt``, if any."""
    for number in range(count):
        session, index = divmod(number, 2)
        asked = [{"role": "system", "content": prompt}] if prompt else []
        asked += [{"role": "user", "content": text(rng, 250)}]
        if index:
            asked += [{"role": "assistant", "content": text(rng, 120)}, {"role": "user", "content": text(rng, 60)}]
        at = START + SECONDS_PER_TURN * number
        ids = [rng.randrange(1000) for _ in range(REPLY_TOKENS)]
        yield (
            Turn(
                id=f"chatcmpl-{number:08d}",
                session_id=f"session-{session}",
                index=index,
                kind="side" if number % SIDE_EVERY == 0 else "main",
                created_at=at,
                finished_at=at + 5,
                messages=asked,
                prompt_ids=[rng.randrange(1000) for _ in range(PROMPT_TOKENS)],
                response_ids=ids,
                response_logprobs=[-rng.random() for _ in ids],
                finish_reason="stop",
                response_message={"role": "assistant", "content": text(rng, 120)},
                temperature=0.6,
                top_p=1.0,
            ),
            text(rng, 40),
        )


def write_run(folder: Path, count: int, prompt: str = "", trains: bool = True) -> Path:
    """Write a run of ``count`` turns with its ledger, arguments and metrics; return its folder.

    Args:
        folder: of the run.
        count: number of turns.
        prompt: how each request begins.
        trains: whether steps take the samples; otherwise all of them wait, while versions change as if they did.
    """
    rng = random.Random(0)
    now = [0.0]
    args = Arguments(run_dir=str(folder), save=None, rollout_batch_size=BATCH)
    tracker = JsonLines(args)
    with closing(Ledger(folder / "ledger.sqlite", clock=lambda: now[0])) as ledger:
        source = turns(rng, count, prompt)
        step = ready = 0
        for _ in track(range(0, count, PER_TRANSACTION), "writing the run", transient=True):
            with ledger.transaction():
                for _, (turn, reaction) in zip(range(PER_TRANSACTION), source, strict=False):
                    now[0] = turn.finished_at + 2
                    progress = (turn.created_at - START) / (SECONDS_PER_TURN * count)
                    turn = replace(turn, weight_versions=[VersionSpan(str(step), 0, REPLY_TOKENS)])
                    ready += _record(ledger, rng, turn, reaction, progress)
                    if ready >= BATCH:
                        if trains:
                            _step(ledger, tracker, rng, step, now[0])
                        step, ready = step + 1, ready - BATCH
    tracker.finish()
    return folder


def _record(ledger: Ledger, rng: random.Random, turn: Turn, reaction: str, progress: float) -> int:
    """Record a turn with its verdict; return the number of its samples."""
    if ledger.turns.record(turn) is None or turn.kind == "side":
        return 0
    ledger.turns.record_next_state(turn.id, [{"role": "user", "content": reaction}], turn.finished_at + 1)
    score = 1 if rng.random() < 0.2 + 0.6 * progress else rng.choice((-1, -1, 0))
    votes = tuple(Vote("prm", f"{reaction} \\boxed{{{score}}}", score, seconds=1.0) for _ in range(3))
    verdict = Verdict(score=score, votes=votes, seconds=rng.uniform(1, 3))
    samples = [make_sample(turn, float(score), score=score)] if score else []
    record_judged(ledger, turn.id, verdict, samples, None if score else "score_zero")
    return len(samples)


def _step(ledger: Ledger, tracker: JsonLines, rng: random.Random, step: int, at: float) -> None:
    ledger.samples.claim(step, BATCH)
    ledger.samples.record_step(step, str(step + 1), at, at + 1)
    ledger.samples.mark_trained(step)
    rollout = {
        "rollout/reward": rng.gauss(0, 0.1),
        "rollout/response_len/mean": rng.gauss(200, 5),
        "openclaw/staleness_mean": 1.0,
    }
    tracker.log(
        {**rollout, **{f"perf/{number}": rng.random() for number in range(60)}, "rollout/step": step}, "rollout/step"
    )
    train = {"train/ppo_kl": rng.gauss(0, 0.01), "train/entropy_loss": rng.uniform(0.3, 0.4)}
    tracker.log(
        {**train, **{f"train/{number}": rng.random() for number in range(15)}, "train/step": step}, "train/step"
    )


def measure(folder: Path) -> dict[str, Any]:
    """Return the fastest seconds of both commands' work, and the size of the page."""
    report_seconds, cpu_seconds, doctor_seconds, size = [], [], [], 0
    for _ in range(RUNS):
        started, cpu = time.perf_counter(), time.process_time()
        size = write_output(folder / "report.html", build(open_run(folder)).page)
        report_seconds.append(time.perf_counter() - started)
        cpu_seconds.append(time.process_time() - cpu)
        started = time.perf_counter()
        diagnose(open_run(folder))
        doctor_seconds.append(time.perf_counter() - started)
    return {
        "report_seconds": round(min(report_seconds), 2),
        "report_cpu_seconds": round(min(cpu_seconds), 2),
        "doctor_seconds": round(min(doctor_seconds), 2),
        "page_bytes": size,
        "ledger_bytes": (folder / "ledger.sqlite").stat().st_size,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} turns instead of {FULL:,}")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="also write the numbers to this file")
    options = parser.parse_args()
    count = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        found = measure(write_run(Path(folder), count))
    print(
        f"{count} turns: report {found['report_seconds']:.2f} s ({found['report_cpu_seconds']:.2f} s of CPU), {found['page_bytes'] / 1e3:.0f} kB; "
        f"doctor {found['doctor_seconds']:.2f} s; ledger {found['ledger_bytes'] / 1e6:.0f} MB"
    )
    if options.json:
        report = {"machine": describe_machine(), "turns": count, **found}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
