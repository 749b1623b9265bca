"""The batches of one owner alone, trained once more: does the adapter's file have the same bytes?

A run keeps each batch as its trainer got it (``--save-debug-rollout-data``). Here those of one owner are put one after the other,
and the launcher trains on them in a run of its own without engines (``--load-debug-rollout-data``). Nothing of anybody else is
there, so equal SHA-256 say that nobody else's batch changed a bit of the adapter.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.people_parts.live import BATCHES, PER_OWNER
from groundwork.network import find_available_port
from lab.tiny_demo.launched import RunFailed, Settings
from lab.tiny_demo.options import method_of
from lab.tiny_models.build import ensure_built
from openclaw.ledger.store import Ledger
from openclaw.runtime.adapters import accepted_versions
from openclaw.runtime.where import CHECKPOINTS_NAME, LEDGER_NAME

LAST_LINES = 25


def batches_of(run_dir: Path) -> dict[str, list[int]]:
    """Return the batches of each owner whose steps are live, in order."""
    found: dict[str, list[int]] = {}
    with closing(Ledger(run_dir / CHECKPOINTS_NAME / LEDGER_NAME)) as ledger:
        for step in ledger.views.step_records():
            found.setdefault(step["person"], []).append(step["rollout_id"])
    return found


def replayed(
    run_dir: Path, owner: str, batches: list[int], work: Path, tell: Callable[[str], None], *, method: str, seed: int
) -> dict[str, Any]:
    """Train the batches of ``owner`` in a run in the folder ``work``, and return both runs' digests by version.

    Raises:
        RunFailed: the replay failed; says how it ended.
    """
    shutil.rmtree(work, ignore_errors=True)
    (work / BATCHES).mkdir(parents=True)
    for place, rollout_id in enumerate(batches):
        shutil.copyfile(run_dir / BATCHES / f"{rollout_id}.pt", work / BATCHES / f"{place}.pt")
    flags = ("--debug-train-only", "--load-debug-rollout-data", str(work / BATCHES / "{rollout_id}.pt"))
    settings = Settings(
        *(method_of(method)[0], len(batches), seed, find_available_port(), work / "run", ensure_built()),
        extra=(*flags, "--no-serve-when-done"),
        defaults={"ADAPTERS": PER_OWNER, "USE_LORA": "1", "GATE": "0"},
    )
    started, log = time.monotonic(), work / "replay.log"
    with log.open("wb") as file:
        ended = subprocess.run(
            settings.command, env=settings.environment(os.environ), stdout=file, stderr=file, check=False
        )
    if ended.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
        raise RunFailed(f"the replay of {owner} ended with exit code {ended.returncode}:\n{tail}")
    live, again = (digests(folder, owner) for folder in (run_dir, work / "run"))
    same = bool(again) and all(again.get(number) == digest for number, digest in live.items() if number in again)
    tell(
        f"{owner}: {len(batches)} batches again in {time.monotonic() - started:.0f} s, {'same' if same else 'OTHER'} bytes"
    )
    return {"batches": len(batches), "same": same and max(live) in again, "live": live, "replay": again}


def digests(run_dir: Path, owner: str) -> dict[int, str]:
    """Return the SHA-256 of an owner's accepted versions that are on disk, by number."""
    return {version.number: version.sha256 for version in accepted_versions(run_dir, owner)}
