"""Weights cross the border between two torch worlds: the trainer's and the engines'."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from groundwork.network import find_available_port
from lab.testkit import trainer
from slime.backends.fsdp_utils.model import export_adapter
from slime.weight_sync import adapter_version, broadcast
from slime.weight_sync.remote_engine import RemoteEngine
from tests.helpers import trainer_ranks
from tests.helpers.fake_weight_engine import FakeWeightEngine
from tests.helpers.tolerance import assert_near
from tests.helpers.trainer_ranks import CPU


@pytest.fixture(scope="module")
def engines() -> Iterator[list[FakeWeightEngine]]:
    started = [FakeWeightEngine(), FakeWeightEngine()]
    yield started
    for engine in started:
        engine.stop()


@pytest.fixture(autouse=True)
def fresh(engines: list[FakeWeightEngine]) -> None:
    for engine in engines:
        engine.failing.clear()
        engine.call("forget")


def received(engine: FakeWeightEngine) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value) for name, value in engine.call("weights").items()}


def test_engines_get_the_checkpoint_by_its_names(tiny_random_model: Path, engines: list[FakeWeightEngine]) -> None:
    args = trainer.trainer_args(tiny_random_model, update_weight_buffer_size=1 << 15)
    actor, _ = trainer_ranks.start_actor(args, 0, 1, find_available_port())
    try:
        actor.connect_rollout_engines([RemoteEngine(engine) for engine in engines])
        assert actor.update_weights() == "0"
        expected = load_file(tiny_random_model / "model.safetensors")
        for engine in engines:
            found = received(engine)
            assert set(found) == set(expected)
            assert all(torch.equal(found[name], expected[name]) for name in expected)
            calls = [call for call in engine.call("calls") if call not in ("calls", "weights", "forget")]
            assert calls[:5] == [
                "starts",
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
        assert actor.update_weights() == "0", "unchanged weights keep their version"
        metrics = actor.train(0, trainer.shards(args, trainer.train_data(), 1)[0])
        assert metrics["perf/update_weights_time"] > 0
        assert actor.update_weights() == "1"
        trained = trainer_ranks.full_parameters(actor)
        for engine in engines:
            found = received(engine)
            assert all(torch.equal(found[name], value) for name, value in trained.items())
    finally:
        actor.shutdown()


@pytest.mark.parametrize(
    ("fault", "method"),
    [
        ("failing", "begin_weight_update"),
        ("failing", "update_weights_from_distributed"),
        ("dying", "update_weights_from_distributed"),
        ("failing", "init_weights_update_group"),
        ("dying", "init_weights_update_group"),
    ],
)
def test_an_engine_that_fails_ends_the_update_at_once(
    tiny_random_model: Path, fault: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No time-out is waited for, the other engine holds, and with a new engine the push is made up for."""
    monkeypatch.setattr(broadcast, "JOIN_SECONDS", 5.0)  # in tests the name service has one second
    args = trainer.trainer_args(tiny_random_model, update_weight_buffer_size=1 << 15)
    engines = [FakeWeightEngine(), FakeWeightEngine()]
    actor, _ = trainer_ranks.start_actor(args, 0, 1, find_available_port())
    try:
        joins = method == "init_weights_update_group"
        if not joins:
            actor.connect_rollout_engines([RemoteEngine(engine) for engine in engines])
        getattr(engines[0], fault).add(method)
        started = time.monotonic()
        with pytest.raises((RuntimeError, EOFError, OSError)):
            actor.connect_rollout_engines(
                [RemoteEngine(engine) for engine in engines]
            ) if joins else actor.update_weights()
        assert time.monotonic() - started < 60 * args.distributed_timeout_minutes / 2
        assert [engine.alive for engine in engines] == [False, True]
        assert "hold_after_failed_update" in engines[1].call("calls")
        with pytest.raises(RuntimeError, match="connect first"):
            actor.update_weights()
        engines[0].stop()
        engines[0] = FakeWeightEngine()
        actor.connect_rollout_engines([RemoteEngine(engine) for engine in engines])
        actor.update_weights()
        expected = load_file(tiny_random_model / "model.safetensors")
        for engine in engines:
            found = received(engine)
            assert all(torch.equal(found[name], value) for name, value in expected.items())
            assert engine.call("calls")[-3:-1] == ["continue_generation", "weights"]
    finally:
        actor.shutdown()
        for engine in engines:
            engine.stop()


def test_lora_is_merged_into_a_copy(tiny_random_tied_model: Path, engines: list[FakeWeightEngine]) -> None:
    args = trainer.trainer_args(tiny_random_tied_model, use_lora=True, weight_update_mode="in_place")
    actor, _ = trainer_ranks.start_actor(args, 0, 1, find_available_port())
    try:
        trainer_ranks.randomise_lora(actor)
        adapters = trainer_ranks.full_parameters(actor)
        actor.connect_rollout_engines([RemoteEngine(engines[0])])
        actor.update_weights()
        expected = load_file(tiny_random_tied_model / "model.safetensors")
        found = received(engines[0])
        assert set(found) == set(expected)
        for name, value in expected.items():
            module = name.removesuffix(".weight")
            if f"{module}.lora_A" in adapters:
                value = value + 2.0 * adapters[f"{module}.lora_B"] @ adapters[f"{module}.lora_A"]
            assert_near(found[name], value)
        flushes = [call[1] for call in engines[0].call("calls") if call[0] == "bucket"]
        assert not any(flushes), "with requests in flight the engine refuses to empty its cache"
        after = trainer_ranks.full_parameters(actor)
        assert all(torch.equal(after[name], value) for name, value in adapters.items())
    finally:
        actor.shutdown()


def test_a_lora_run_sends_nothing_but_its_adapter(
    tmp_path: Path, tiny_random_model: Path, engines: list[FakeWeightEngine]
) -> None:
    args = trainer.trainer_args(tiny_random_model, use_lora=True, update_weight_mode="adapter", run_dir=str(tmp_path))
    args.lora_target_modules = ["q_proj", "down_proj"]
    actor, _ = trainer_ranks.start_actor(args, 0, 1, find_available_port())
    try:
        trainer_ranks.randomise_lora(actor)
        actor.connect_rollout_engines([RemoteEngine(engine) for engine in engines])
        assert [actor.update_weights(), actor.update_weights()] == ["0", "0"]
        export_adapter(args, actor.backend.model, tmp_path / "adapter", device=CPU)
        expected = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
        for engine in engines:
            found = received(engine)
            assert set(found) == set(expected)
            assert all(torch.equal(found[name], value) for name, value in expected.items())
            loads = [call for call in engine.call("calls") if call[0] == "adapter"]
            assert len({name for _, name, _ in loads}) == 2, "an engine takes a name once"
            assert {adapter_version(name) for _, name, _ in loads} == {"0"}
            assert loads[0][2]["r"] == args.lora_rank
            assert "pause_generation" not in engine.call("calls")
    finally:
        actor.shutdown()
