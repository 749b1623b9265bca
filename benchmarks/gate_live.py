"""Does the gate stop flipped verdicts in a real run, and does the model follow a user who changes taste?

`python -m benchmarks.gate_live [--quick] --json FILE`. SGLang, Ray, FSDP2, gateway, judge and ledger on the tiny model. A simulated
user talks in rounds, one per batch, in four parts:

* **healthy**: the user has the student's taste. It ends once enough held-out replies are liked and the gate compares opinions,
  but well before all are liked: a policy that gives only one kind of reply has nothing to learn from.
* **flipped**: three batches whose reactions, and so whose verdicts, are all the opposite.
* **healthy again**: two batches.
* **changed**: the opposite taste for good. After enough refusals `openclaw-rl accept RUN` is called, and the user goes on.

After each decision the served version answers held-out problems, unless it is the one that did so before. Sampled replies are noisy:
the standard error of a share of 384 replies is 0.02, of 128 replies 0.04. The new taste likes just what the first dislikes.

Three claims are judged: the share never falls by more than 0.05 while verdicts are flipped; at least one batch of verdicts against
the first taste is refused, of the flipped part or before the change is accepted, because Adam's moments can carry three batches over;
and the new taste's share rises by at least 0.2 from the moment of acceptance.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.fault_parts.checks import write_json
from benchmarks.gate_parts.told import Told, summarise
from benchmarks.machine import REPOSITORY, describe_machine
from groundwork.command_line import output_file
from groundwork.network import find_available_port
from openclaw.ledger.decisions import DecisionRecord
from openclaw.ledger.store import Ledger

sys.path.insert(0, str(REPOSITORY / "openclaw-test"))

from asking import server_client
from measure import heldout_items, measure
from simulated_users.reaction import PhraseVoice
from student import STUDENT, Student

from lab.tiny_demo.launched import MODEL_NAME, LaunchedRun, Settings
from lab.tiny_models.build import ensure_built

BATCH, PARALLEL, RATE = 16, 8, 5e-4
POLL_SECONDS, STUCK_SECONDS = 0.2, 300.0


@dataclass(frozen=True)
class Length:
    """Most batches of each part (``waiting``: until an offer), the share that ends the healthy part, and the held-out problems."""

    healthy: int = 12
    flipped: int = 3
    again: int = 2
    waiting: int = 24
    after: int = 12
    held_out: int = 384
    enough: float = 0.65


QUICK = Length(healthy=8, again=0, waiting=6, after=6, held_out=128)


class Moody(PhraseVoice):
    """The student's phrases, or all the opposite while ``flipped``."""

    flipped = False

    async def react(
        self, rng: random.Random, messages: list[dict[str, Any]], liked: bool, following: str | None
    ) -> str:
        """Return the reaction."""
        return await super().react(rng, messages, liked != self.flipped, following)


class Story:
    """One run with its user; writes what happens to ``told``."""

    def __init__(self, run: LaunchedRun, client: Any, ledger: Ledger, length: Length) -> None:
        self.told = Told()
        self._run, self._client, self._ledger, self._length = run, client, ledger, length
        self._voice = Moody(STUDENT)
        self._student = Student(client, MODEL_NAME, seed=7, max_turns=2, voice=self._voice)
        self._sessions = 0
        self._measured: tuple[str | None, float] | None = None

    async def tell(self) -> None:
        """Go through all parts."""
        length = self._length
        while len(self.told.rows) < length.healthy and not self.told.healthy_enough(length.enough):
            await self._part("healthy", 1)
        self._voice.flipped = True
        await self._part("flipped", length.flipped)
        self._voice.flipped = False
        await self._part("again", length.again)
        self._voice.flipped = True
        for batch in range(length.waiting):
            await self._part("changed", 1)
            if self._ledger.decisions.offer(3) is not None:
                self.told.offered_after = batch + 1
                command = [sys.executable, "-m", "openclaw", "accept", str(self._run.settings.run_dir)]
                done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
                self.told.accepted = done.stdout.strip()
                break
        await self._part("after", length.after if self.told.accepted else 0)

    async def _part(self, name: str, batches: int) -> None:
        for _ in range(batches):
            started = time.monotonic()
            decision = await self._batch()
            row = {"part": name, "kind": decision.kind, "version": decision.weight_version, "why": decision.why}
            row |= {key: round(value, 5) for key, value in decision.metrics.items()}
            row |= {"liked": await self._liked(), "seconds": round(time.monotonic() - started, 1)}
            self.told.rows.append(row)
            print(
                name, row["kind"], row.get("gate/margin"), row["liked"], decision.why[:150], file=sys.stderr, flush=True
            )

    def _decisions(self) -> list[DecisionRecord]:
        return [each for each in self._ledger.decisions.all() if each.kind in ("step", "refused")]

    async def _batch(self) -> DecisionRecord:
        """Talk until the next batch is decided, and return the decision."""
        count, deadline = len(self._decisions()), time.monotonic() + STUCK_SECONDS
        while len(found := self._decisions()) <= count:
            self._run.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"no decision within {STUCK_SECONDS:.0f} s; see {self._run.log_path}")
            if self._waits():
                await asyncio.sleep(POLL_SECONDS)
                continue
            numbers = range(self._sessions, self._sessions + PARALLEL)
            self._sessions += PARALLEL
            await asyncio.gather(*map(self._student.session, numbers))
        await self._settled()
        return found[-1]

    def _waits(self) -> bool:
        """Whether a batch trains, or is about to: talking on would only fill the next one."""
        counts = self._ledger.views.counts()
        pending = counts["turns"].get("pending", 0)
        undecided = [each for each in self._ledger.views.sample_records() if each.state == "leased"]
        decided = {each.rollout_id for each in self._decisions()}
        return bool(
            pending
            or self._ledger.samples.ready_count() >= BATCH
            or any(each.rollout_id not in decided for each in undecided)
        )

    async def _settled(self) -> None:
        """Return when the newest decision has taken effect: its version is live, or its batch in quarantine."""
        deadline = time.monotonic() + STUCK_SECONDS
        while time.monotonic() < deadline:
            newest = self._decisions()[-1]
            if newest.live_at is not None or (newest.kind == "refused" and newest.samples and not self._leased(newest)):
                return
            await asyncio.sleep(POLL_SECONDS)
        raise RuntimeError("a decision had no effect")

    def _leased(self, decision: DecisionRecord) -> bool:
        return any(
            each.state == "leased" and each.rollout_id == decision.rollout_id
            for each in self._ledger.views.sample_records()
        )

    async def _liked(self) -> float:
        """Return the held-out share of the served version that the first taste likes."""
        version = self._ledger.samples.live_weight_version()
        if self._measured is None or self._measured[0] != version:
            found = await measure(self._client, MODEL_NAME, heldout_items(self._length.held_out), user=STUDENT)
            self._measured = (version, round(found.rule_rate, 4))
        return self._measured[1]


async def carry_out(length: Length, rate: float, gate: str, folder: Path) -> Told:
    """Start a run, go through the story, and end the run."""
    extra = {"LEARNING_RATE": str(rate), "BATCH_SIZE": str(BATCH), "GATE": gate, "OPENCLAW_FUSES": "off"}
    settings = Settings("rl", 10_000, 1, find_available_port(), folder, ensure_built(0), defaults=extra)
    run = LaunchedRun(settings)
    run.start()
    try:
        await run.wait_ready()
        async with server_client(settings.base_url, 300) as client:
            with closing(Ledger(settings.ledger)) as ledger:
                story = Story(run, client, ledger, length)
                await story.tell()
                return story.told
    finally:
        run.stop()


def main(argv: list[str] | None = None) -> int:
    """Command line; exit status 1 unless all three claims held."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate_live", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter parts and fewer held-out problems")
    parser.add_argument("--rate", type=float, default=RATE, help="learning rate (default: %(default)s)")
    parser.add_argument("--json", required=True, type=output_file, help="file for the figures")
    options = parser.parse_args(argv)
    length = QUICK if options.quick else Length()
    with tempfile.TemporaryDirectory(prefix="gate-") as folder:
        told = asyncio.run(carry_out(length, options.rate, "1", Path(folder) / "run"))
    summary = summarise(told)
    document = {"machine": describe_machine(), "rate": options.rate, "length": asdict(length)}
    write_json(options.json, {**document, "summary": summary, "batches": told.rows})
    print(json.dumps(summary, indent=1))
    return int(not all(summary["claims"].values()))


if __name__ == "__main__":
    sys.exit(main())
