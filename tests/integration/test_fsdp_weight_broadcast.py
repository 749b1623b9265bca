"""Weights cross the border between two torch worlds: the trainer's and the engines'."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from slime.utils.http_utils import find_available_port
from slime.weight_sync import broadcast
from tests.helpers import trainer, trainer_ranks
from tests.helpers.fake_weight_engine import FakeWeightEngine


@pytest.fixture(scope="module")
def engines() -> Iterator[list[FakeWeightEngine]]:
    started = [FakeWeightEngine(), FakeWeightEngine()]
    yield started
    for engine in started:
        engine.stop()


@pytest.fixture(autouse=True)
def futures_instead_of_ray(monkeypatch: pytest.MonkeyPatch, engines: list[FakeWeightEngine]) -> None:
    def get(references: list[Future[Any]]) -> list[Any]:
        return [reference.result(60) for reference in references]

    monkeypatch.setattr(broadcast, "_get", get)
    for engine in engines:
        engine.failing.clear()
        engine.call("forget")


def received(engine: FakeWeightEngine) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value) for name, value in engine.call("weights").items()}


def test_engines_get_the_checkpoint_by_its_names(tiny_random_model: Path, engines: list[FakeWeightEngine]) -> None:
    args = trainer.trainer_args(tiny_random_model, update_weight_buffer_size=1 << 15)
    actor, _ = trainer_ranks.start_actor(args, 0, 1, find_available_port())
    try:
        actor.connect_rollout_engines(engines)
        assert actor.update_weights() == "0"
        expected = load_file(tiny_random_model / "model.safetensors")
        for engine in engines:
            found = received(engine)
            assert set(found) == set(expected)
            assert all(torch.equal(found[name], expected[name]) for name in expected)
            calls = [call for call in engine.call("calls") if call not in ("calls", "weights", "forget")]
            assert calls[:4] == [
                "num_weight_ranks",
                "init_weights_update_group",
                "pause_generation",
                "begin_weight_update",
            ]
            assert calls[-3:] == [
                ("bucket", True, "0", "flattened_bucket"),
                "end_weight_update",
                "continue_generation",
            ]
            buckets = [call for call in calls if call[0] == "bucket"]
            assert len(buckets) > 2
            assert all(call == ("bucket", False, None, "flattened_bucket") for call in buckets[:-1])
        check_versions_and_recovery(actor, args, engines)
    finally:
        actor.shutdown()


def check_versions_and_recovery(actor: Any, args: Any, engines: list[FakeWeightEngine]) -> None:
    assert actor.update_weights() == "0", "unchanged weights keep their version"
    metrics = actor.train(0, trainer.shards(args, trainer.train_data(), 1)[0])
    assert metrics["perf/update_weights_time"] > 0
    engines[0].failing.add("begin_weight_update")
    engines[1].call("forget")
    with pytest.raises(RuntimeError, match="begin_weight_update failed"):
        actor.update_weights()
    assert "hold_after_failed_update" in engines[1].call("calls")
    engines[0].failing.clear()
    actor.connect_rollout_engines(engines)
    assert actor.update_weights() == "1", "the failed push is made up for"
    trained = trainer_ranks.full_parameters(actor)
    for engine in engines:
        found = received(engine)
        assert all(torch.equal(found[name], value) for name, value in trained.items())


def test_lora_is_merged_into_a_copy(tiny_random_tied_model: Path, engines: list[FakeWeightEngine]) -> None:
    args = trainer.trainer_args(tiny_random_tied_model, use_lora=True, weight_update_mode="in_place")
    actor, _ = trainer_ranks.start_actor(args, 0, 1, find_available_port())
    try:
        trainer_ranks.randomise_lora(actor)
        adapters = trainer_ranks.full_parameters(actor)
        actor.connect_rollout_engines(engines[:1])
        actor.update_weights()
        expected = load_file(tiny_random_tied_model / "model.safetensors")
        found = received(engines[0])
        assert set(found) == set(expected)
        for name, value in expected.items():
            module = name.removesuffix(".weight")
            if f"{module}.lora_A" in adapters:
                value = value + 2.0 * adapters[f"{module}.lora_B"] @ adapters[f"{module}.lora_A"]
            torch.testing.assert_close(found[name], value, atol=1e-6, rtol=1e-6)
        flushes = [call[1] for call in engines[0].call("calls") if call[0] == "bucket"]
        assert not any(flushes), "with requests in flight the engine refuses to empty its cache"
        after = trainer_ranks.full_parameters(actor)
        assert all(torch.equal(after[name], value) for name, value in adapters.items())
    finally:
        actor.shutdown()
