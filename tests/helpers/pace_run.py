"""A live tiny run in which two people talk: how long a session's feedback takes to reach the weights.

``python -m tests.helpers.pace_run session`` (or ``batch``) prints the seconds from the end of alice's only session, which has
two judged turns, until an update that learned from it serves. From the end of her session on bob talks without a pause.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from openai import AsyncOpenAI

from lab.testkit.live_run import KEYS, LiveRun, keys_file, talk, wait_until
from openclaw.ledger.store import Ledger

QUIET_SECONDS = 2


@dataclass(frozen=True)
class Learned:
    """The first update that learned from alice.

    Attributes:
        seconds: from the end of her session until it served.
        batch: its samples by person.
        others_wait: whether samples of bob waited for a later step.
    """

    seconds: float
    batch: Counter[str]
    others_wait: bool


def measure(repository: Path, folder: Path, model: Path, pace: str, batch_size: int) -> Learned:
    """Run, talk and return what was learned; ``pace``: of ``OPENCLAW_PACE``."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = keys_file(folder)
    settings = {"OPENCLAW_PACE": pace, "OPENCLAW_QUIET_SECONDS": QUIET_SECONDS, "BATCH_SIZE": batch_size}
    run = LiveRun(
        repository, folder / "run", model, "rl", OPENCLAW_API_KEYS_FILE=keys, OPENCLAW_FUSES="off", **settings
    )
    done = threading.Event()
    bob = threading.Thread(target=lambda: asyncio.run(_talk(run.base_url, "bob", done)), daemon=True)
    try:
        run.wait_ready()
        asyncio.run(_talk(run.base_url, "alice"))
        ended = time.time()
        bob.start()
        with closing(Ledger(run.ledger_path)) as ledger:
            rollout_id, live_at = wait_until(
                lambda: _step_of_alice(ledger), lambda: f"no update has alice's samples:\n{run.text()[-4000:]}"
            )
            batch = _people(ledger, "rollout_id = ?", rollout_id)
            others = wait_until(lambda: _people(ledger, "state = 'ready'"), lambda: f"nothing waits:\n{batch}")
        done.set()
        bob.join(60.0)
        run.stop()
    finally:
        done.set()
        if run.process.poll() is None:
            run.process.kill()
    return Learned(live_at - ended, batch, set(others) == {"bob"})


def _step_of_alice(ledger: Ledger) -> tuple[int, float] | None:
    """Return the batch that has her samples, and when its update began to serve."""
    rows = ledger.database.rows(
        "SELECT steps.rollout_id, live_at FROM steps JOIN samples USING (rollout_id) WHERE samples.person = 'alice' LIMIT 1"
    )
    return (rows[0]["rollout_id"], rows[0]["live_at"]) if rows else None


def _people(ledger: Ledger, where: str, *values: int) -> Counter[str]:
    """Return how many samples each person has of those in question."""
    rows = ledger.database.rows(f"SELECT person, COUNT(*) AS n FROM samples WHERE {where} GROUP BY person", values)
    return Counter({row["person"]: row["n"] for row in rows})


async def _talk(base_url: str, name: str, until: threading.Event | None = None) -> None:
    """Talk in one session: once, or again and again until the event."""
    rng = random.Random(name)
    async with AsyncOpenAI(base_url=base_url, api_key=KEYS[name], max_retries=0, timeout=600.0) as client:
        await talk(client, rng, f"session-of-{name}")
        while until is not None and not until.is_set():
            await talk(client, rng, f"session-of-{name}")


if __name__ == "__main__":
    from lab.tiny_models.build import ensure_built

    with tempfile.TemporaryDirectory() as name:
        print(measure(Path.cwd(), Path(name), ensure_built(0), sys.argv[1], 16))
