"""Dumped rollouts, whole and in part, replayed by the manager without engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slime.args import Arguments
from slime.arguments.placement import Placement
from slime.ray import rollout as manager_module
from slime.ray.rollout import BatchMaker
from slime.utils.types import Sample


def samples_of(args: Arguments, rollout_id: int, source: Any, evaluation: bool = False) -> Any:
    """Four samples in groups of two."""
    return [
        Sample(
            index=i,
            group_index=i // 2,
            tokens=[1, 2, 3],
            response_length=2,
            reward=float(i),
            rollout_log_probs=[-1.0] * 2,
        )
        for i in range(4)
    ]


def batches(monkeypatch: pytest.MonkeyPatch, **flags: Any) -> BatchMaker:
    monkeypatch.setattr(manager_module.ray, "put", lambda value: value)
    values = {
        "global_batch_size": 4,
        "rollout_function_path": f"{__name__}.samples_of",
        "use_dynamic_global_batch_size": True,
    }
    return BatchMaker(Arguments(**(values | flags)), Placement((0,), (), ()))


def test_a_dump_is_replayed_in_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    template = str(tmp_path / "dump" / "{rollout_id}.pt")
    batches(monkeypatch, save_debug_rollout_data=template).generate(7, None, lambda _: None)
    replay = batches(monkeypatch, load_debug_rollout_data=template)
    assert len(replay.generate(7, None, lambda _: None)["shards"][0]["tokens"]) == 4
    replay._args.load_debug_rollout_data_subsample = 0.5
    assert replay.generate(7, None, lambda _: None)["shards"][0]["sample_indices"] == [0, 1]
