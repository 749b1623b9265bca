"""Dumped rollouts, whole and in part, replayed by the manager without engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slime.args import Arguments
from slime.arguments.placement import Placement
from slime.ray import rollout as manager_module
from slime.ray.rollout import BatchMaker
from slime.rollout.base_types import RolloutFnTrainOutput
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


def test_a_dump_says_whose_samples_it_has_where_each_person_has_an_adapter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    template = str(tmp_path / "dump" / "{rollout_id}.pt")

    def of_one(*of: Any, evaluation: bool = False) -> RolloutFnTrainOutput:
        return RolloutFnTrainOutput([samples_of(*of)], person="ann")

    monkeypatch.setattr(f"{__name__}.samples_of_one", of_one, raising=False)
    one = {"rollout_function_path": f"{__name__}.samples_of_one", "save_debug_rollout_data": template}
    for per_person in (False, True):
        batches(monkeypatch, adapter_per_person=per_person, **one).generate(7, None, lambda _: None)
        assert batches(monkeypatch, load_debug_rollout_data=template).generate(7, None, lambda _: None)["person"] == (
            "ann" if per_person else None
        )
