"""Adapters per person on several ranks and with Megatron: each person has the bytes of a run with this person's batches only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.testkit import trainer
from tests.helpers import people_ranks
from tests.helpers.people_ranks import P, Q

PLAN = people_ranks.PLAN[:3]
MEGATRON: dict[str, Any] = {"train_backend": "megatron", "lora_dropout": 0.0}
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "fsdp, 2 ranks": (2, {}),
    "megatron, 1 rank": (1, MEGATRON),
    "megatron, 2 ranks": (2, MEGATRON | {"tensor_model_parallel_size": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_each_person_is_trained_as_alone(name: str, tmp_path: Path, tiny_random_tied_model: Path) -> None:
    """Also if everybody is read from disk between every two steps."""
    ranks, changes = CASES[name]
    alone = {f"alone-{mark}": [item for item in PLAN if item[0] == mark] for mark in (P, Q)}
    runs = [("together", PLAN), ("evicted", PLAN), *alone.items()]
    trainer.on_ranks(ranks, people_ranks.train_people, changes, str(tiny_random_tied_model), runs, str(tmp_path))
    found = {run: json.loads((tmp_path / run / "states.json").read_text()) for run, _ in runs}
    assert found["together"] == found["evicted"] == found[f"alone-{P}"] | found[f"alone-{Q}"]
    assert all(len(digests) == 1 + 2 * ranks for digests in found["together"].values())
