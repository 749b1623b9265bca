"""The batches of one owner alone, trained once more: does the adapter's file have the same bytes?

A run keeps each batch as its trainer got it (``--save-debug-rollout-data``). Here those of one owner go, in their order, through a
trainer of the same arguments in a new process, as ``--load-debug-rollout-data`` reads them. Nothing of anybody else is there, so
equal SHA-256 say that nobody else's batch changed a bit of the adapter.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.people_parts.live import BATCHES
from groundwork.network import find_available_port
from groundwork.people import mark_of
from lab.testkit import trainer
from openclaw.ledger.store import Ledger
from openclaw.runtime.adapters import accepted_versions
from openclaw.runtime.where import ARGUMENTS_NAME, CHECKPOINTS_NAME, LEDGER_NAME
from slime.args import Arguments
from slime.backends.fsdp_utils.backend import FSDPTrainActor
from slime.rollout.train_data import convert, split_by_dp
from slime.utils.data_files import load_data
from slime.utils.types import Sample

UNSET = "unset"
"""How a run notes what may be secret and nobody gave; by its name it takes ``calculate_per_token_loss`` for that, too."""
ONE_STEP = {"use_dynamic_global_batch_size": True, "num_steps_per_rollout": 1}


def batches_of(run_dir: Path) -> dict[str, list[int]]:
    """Return the batches of each owner whose steps are live, in order."""
    found: dict[str, list[int]] = {}
    with closing(Ledger(run_dir / CHECKPOINTS_NAME / LEDGER_NAME)) as ledger:
        for step in ledger.views.step_records():
            found.setdefault(step["person"], []).append(step["rollout_id"])
    return found


def replayed(run_dir: Path, owner: str, batches: list[int], work: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    """Train the batches of ``owner`` with a trainer in the folder ``work``; return both runs' digests by version."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    started = time.monotonic()
    trainer.on_ranks(1, train_alone, str(run_dir), owner, batches, str(work))
    live, again = (digests(folder, owner) for folder in (run_dir, work))
    same = max(live) == max(again) == len(batches) and all(again[number] == digest for number, digest in live.items())
    tell(f"{owner}: {len(batches)} batches in {time.monotonic() - started:.0f} s, {'same' if same else 'OTHER'} bytes")
    return {"batches": len(batches), "same": same, "live": live, "replay": again}


def train_alone(rank: int, world_size: int, run_dir: str, owner: str, batches: list[int], work: str) -> None:
    """Train some batches of a run as its trainer does, in a process of its own."""
    values = json.loads(Path(run_dir, ARGUMENTS_NAME).read_text())
    own = {"run_dir": work, "save": None, "load": None, "resume": False, "save_debug_rollout_data": None}
    unset = {name for name, value in values.items() if value == UNSET}
    args = Arguments.of({name: value for name, value in (values | own).items() if name not in unset})
    actor = FSDPTrainActor(world_size, rank, "127.0.0.1", find_available_port())
    actor.init(args)
    for rollout_id in batches:
        dump = load_data(Path(run_dir, BATCHES, f"{rollout_id}.pt"))
        how = args if dump["passes"] is None else args.changed(**ONE_STEP)  # as `slime.ray.rollout.BatchMaker` does
        data = convert(args, [Sample.from_dict(record) for record in dump["samples"]])
        assert dump["person"] == owner, "the batch is another owner's"
        actor.let_in(mark_of(owner))
        actor.train(rollout_id, split_by_dp(data, 1, how)[0], dump["passes"] or 1)
        actor.update_weights()
    actor.shutdown()


def digests(run_dir: Path, owner: str) -> dict[int, str]:
    """Return the SHA-256 of an owner's accepted versions that are on disk, by number."""
    return {version.number: version.sha256 for version in accepted_versions(run_dir, owner)}
