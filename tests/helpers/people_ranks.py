"""What a rank does in the tests of adapters per person; at module level, so that new processes can import it."""

from __future__ import annotations

import hashlib
import json
import secrets
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from groundwork.people import mark_of
from lab.testkit import trainer
from slime.arguments import placement
from slime.weight_sync.people import Book, folder_of, people_folder
from tests.helpers.gate_ranks import make_actor

P, Q, R = (mark_of(name) for name in ("paula", "quentin", "rosa"))
PLAN: list[tuple[str, int]] = [(P, 0), (Q, 10), (P, 1), (R, 20), (Q, 11), (P, 2)]
"""Whose batch comes when, and its seed."""
LORA: dict[str, Any] = {
    **{"use_lora": True, "lora_dropout": 0.1, "adapter_per_person": True, "update_weight_mode": "adapter"},
    **{"lr_decay_style": "cosine", "lr_decay_iters": 5, "lr_warmup_iters": 2, "adam_eps": 1e-4, "people_in_memory": 32},
}
"""The dropout needs the random state of each person, too."""


def start(model: Path | str, run_dir: Path, rank: int = 0, world_size: int = 1, **changes: Any) -> tuple[Any, Any]:
    """Return the arguments and a ready actor with an adapter for each person in ``run_dir``."""
    run_dir.mkdir(parents=True, exist_ok=True)
    place = str(run_dir / ("meeting" if world_size > 1 else f"meeting-{secrets.token_hex(4)}"))
    return make_actor(LORA | {"run_dir": str(run_dir)} | changes, str(model), rank, world_size, place)


def data_of(args: Any, seed: int, rank: int = 0, world_size: int = 1, **fields: Any) -> dict[str, Any]:
    """Return this rank's part of the batch of a seed; ``fields`` replace some of its data."""
    copies = placement.data_parallel_size(args, world_size)
    place = placement.data_parallel_rank(args, rank, world_size)
    return trainer.shards(args, trainer.train_data(seed=seed) | fields, copies)[place]


def update(args: Any, actor: Any, mark: str, seed: int, rank: int = 0, world_size: int = 1) -> str:
    """Train one batch of a person, publish, and return the version."""
    actor.let_in(mark)
    actor.take_snapshot()
    actor.train(seed, data_of(args, seed, rank, world_size))
    actor.keep_steps()
    return actor.update_weights()


def states(run_dir: Path, ranks: int = 1) -> dict[str, list[str]]:
    """Return what serves each person by mark: the digest in the book, and those of the files that a trainer reads."""
    people, found = people_folder(run_dir), {}
    for mark, versions in Book(people).lines().items():
        folder = folder_of(people, versions[0].name)
        files = [
            folder / f"training{f'-{rank}' if rank else ''}{end}"
            for rank in range(ranks)
            for end in (".safetensors", ".pt")
        ]
        digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
        found[mark] = [versions[0].sha256, *digests]
    return found


def train_people(
    rank: int, world_size: int, changes: dict[str, Any], model: str, runs: Sequence[tuple[str, list[Any]]], out: str
) -> None:
    """Do each run's updates in a folder of ``out``; the changes of a run follow its name."""
    warnings.filterwarnings("ignore")
    for name, plan in runs:
        run_dir = Path(out, name)
        own = {"people_in_memory": 0} if name == "evicted" else {}
        args, actor = start(model, run_dir, rank, world_size, **changes, **own)
        for mark, seed in plan:
            update(args, actor, mark, seed, rank, world_size)
        actor.shutdown()
        if rank == 0:
            (run_dir / "states.json").write_text(json.dumps(states(run_dir, world_size)))
