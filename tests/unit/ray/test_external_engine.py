"""External engines, hanging engines, and the size of an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.placement import EngineSpec, describe_placement, tensor_parallel_size
from slime.arguments.sglang_flags import recorded_flags
from slime.backends.sglang_utils import engine as engine_module
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.backends.sglang_utils.external import ExternalEngine, external_url
from slime.backends.sglang_utils.server_args import server_command
from slime.exceptions import EngineError
from slime.ray.engine_group import ExternalEngineGroup, engine_groups
from slime.ray.placement import ReservedPlacement


def arguments(tmp_path: Path, **changes: Any) -> Arguments:
    values = {
        "device": "cpu",
        "run_dir": str(tmp_path),
        "hf_checkpoint": "policy",
        "seed": 7,
        "rollout_health_check_timeout": 30.0,
        "rollout_health_check_first_wait": 0.0,
        "rollout_external_engine_addrs": None,
        "load_debug_rollout_data": None,
        "multimodal_keys": None,
    }
    return Arguments(**{**values, **changes})


def external(tmp_path: Path, answers: dict[str, Any]) -> tuple[ExternalEngine, list[tuple[str, Any]]]:
    """An external engine whose server gives ``answers`` by path, and what it was sent."""
    heard: list[tuple[str, Any]] = []

    def handle(request: httpx.Request) -> httpx.Response:
        heard.append((str(request.url), json.loads(request.content or b"null")))
        answer = answers.get(request.url.path, 404)
        return httpx.Response(answer) if isinstance(answer, int) else httpx.Response(200, json=answer)

    engine = ExternalEngine(arguments(tmp_path), EngineSpec("policy", 0, 1), "10.0.0.9:30000")
    engine._client = httpx.Client(transport=httpx.MockTransport(handle))
    return engine, heard


def test_an_external_engine_is_what_it_says_and_gets_weights(tmp_path: Path) -> None:
    engine, heard = external(tmp_path, {"/server_info": {"tp_size": 4}, "/begin_weight_update": {}})
    assert engine.start() == "http://10.0.0.9:30000"
    assert engine.num_weight_ranks() == 4
    engine.begin_weight_update()
    assert heard[-1] == ("http://10.0.0.9:30000/begin_weight_update", {})
    asked = len(heard)
    assert not engine.has_ended(), "nobody here knows its processes"
    assert len(heard) == asked, "a server that loads weights may not answer"


def test_an_external_engine_of_several_stages_reads_weights_from_a_disk(tmp_path: Path) -> None:
    engine, _ = external(tmp_path, {"/server_info": {"tp_size": 2, "pp_size": 2}})
    with pytest.raises(EngineError, match="has 2 pipeline stages: broadcast and shared memory cannot update"):
        engine.start()
    engine._args.update_weight_transport = "disk"
    engine.start()
    assert engine.num_weight_ranks() == 4


def test_an_external_engine_that_sees_pictures_must_not_keep_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine, _ = external(tmp_path, {"/server_info": {"tp_size": 1}})
    engine.start()
    assert "SGLANG_VLM_CACHE_SIZE_MB" not in caplog.text
    engine._args.multimodal_keys = {"image": "pictures"}
    engine.start()
    assert "SGLANG_VLM_CACHE_SIZE_MB=0" in caplog.text


def test_an_external_engine_is_never_started_or_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine, heard = external(tmp_path, {})
    assert engine.restart_if_dead() is False
    engine.stop()
    engine.kill()
    engine.end_failed_update(1)
    assert "restart it" in caplog.text
    assert not heard
    assert not list(tmp_path.rglob("*.log"))


@pytest.mark.parametrize("answer", [503, {"version": "x"}])
def test_a_server_that_is_no_engine_is_refused_with_its_address(tmp_path: Path, answer: Any) -> None:
    engine, _ = external(tmp_path, {"/server_info": answer})
    with pytest.raises(EngineError, match=r"server_info|10\.0\.0\.9:30000"):
        engine.start()


def test_addresses_have_a_port() -> None:
    assert external_url("host:30000") == "http://host:30000"
    assert external_url("http://[::1]:30000/") == "http://[::1]:30000"
    with pytest.raises(ConfigError, match="write host:port"):
        external_url("host")


def test_a_run_with_external_engines_places_none_of_its_own(tmp_path: Path) -> None:
    args = arguments(
        tmp_path,
        rollout_external_engine_addrs=["a:1", "b:2"],
        debug_rollout_only=False,
        debug_train_only=False,
        actor_num_nodes=1,
        actor_num_gpus_per_node=2,
        rollout_num_gpus=2,
        rollout_num_gpus_per_engine=1,
        prm_enable=False,
        prm_num_gpus=0,
        prm_num_gpus_per_engine=1,
        colocate=False,
        router="auto",
    )
    placement = describe_placement(args)
    assert (placement.actor, placement.rollout) == ((0, 1), ())
    (group,) = engine_groups(args, ReservedPlacement(placement, None, ()))
    assert isinstance(group, ExternalEngineGroup)
    assert [spec.name for spec in group.specs] == ["engine-policy-0", "engine-policy-1"]
    assert group.revive() == []
    args.load_debug_rollout_data = "x"
    assert engine_groups(args, ReservedPlacement(placement, None, ())) == []


def test_an_engine_hangs_when_it_was_silent_for_the_whole_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SGLangEngine(arguments(tmp_path, rollout_health_check_first_wait=20.0), EngineSpec("policy", 0, 1))
    clock, healthy = [100.0], [False]
    monkeypatch.setattr(engine_module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(engine, "health", lambda: healthy[0])
    engine._started_at = 95.0
    looks = []
    for now in (100.0, 129.0, 130.0):
        clock[0] = now
        looks.append(engine.hangs())
    assert looks == [False, False, True]
    healthy[0] = True
    assert engine.hangs() is False
    healthy[0], engine._started_at = False, 130.0
    for now in (131.0, 149.0):
        clock[0] = now
        assert engine.hangs() is False  # silent again since 131
    engine._args.rollout_health_check_timeout = 1.0
    assert engine.hangs() is False  # younger than the first wait
    clock[0] = 150.0
    assert engine.hangs() is True


def test_a_hanging_engine_is_ended_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Child:
        pid = -1
        returncode = -9
        running = True

        def alive(self) -> bool:
            return self.running

        def kill(self) -> None:
            self.running = False

    engine = SGLangEngine(arguments(tmp_path), EngineSpec("policy", 0, 1))
    child, starts = Child(), []
    engine.process.child = child  # type: ignore[assignment]
    monkeypatch.setattr(engine, "start", lambda hold: starts.append((child.running, hold)))
    monkeypatch.setattr(engine, "hangs", lambda: False)
    assert engine.restart_if_dead() is False
    monkeypatch.setattr(engine, "hangs", lambda: True)
    assert engine.restart_if_dead(hold=True) is True
    assert starts == [(False, True)]


@pytest.mark.parametrize(("gpus", "stages", "tensor"), [(1, None, "1"), (8, None, "8"), (8, 2, "4")])
def test_an_engine_has_its_gpus_as_tensor_times_pipeline_parallelism(
    tmp_path: Path, gpus: int, stages: int | None, tensor: str
) -> None:
    spec = EngineSpec("policy", 0, gpus, tuple(range(gpus)))
    words = server_command(arguments(tmp_path, sglang_pp_size=stages), spec, port=30001, cpu=False)[3:]
    given = {
        word.removeprefix("--"): words[place + 1] for place, word in enumerate(words[:-1]) if word.startswith("--")
    }
    assert (given["tp-size"], given.get("pp-size")) == (tensor, None if stages is None else str(stages))
    assert {"tp-size", "pp-size"} <= set(recorded_flags())
    assert SGLangEngine(arguments(tmp_path, device="cuda"), spec).num_weight_ranks() == gpus


def test_stages_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="3 pipeline stages"):
        tensor_parallel_size(arguments(tmp_path, sglang_pipeline_parallel_size=3), 4)
