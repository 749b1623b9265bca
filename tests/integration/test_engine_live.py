"""A real SGLang engine on the CPU: exact logprobs, weight updates under load, crash and restart, clean end."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from safetensors.torch import load_file

from benchmarks.weight_receiver import local_handle
from groundwork.process import group_alive
from lab.testkit.live_engine import WeightSender, engine_arguments, files_of, gone
from lab.testkit.processes import reachable_from_outside
from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.backends.sglang_utils.engine import CACHE, WEIGHTS, SGLangEngine
from slime.backends.sglang_utils.external_release import DEFAULT_VERSION, follow
from slime.exceptions import EngineError
from tests.helpers.engine_checks import check_streams_through_updates, check_the_trainer_agrees
from tests.helpers.engine_streams import (
    FLOAT32,
    WAIT_SECONDS,
    Stream,
    prompts,
    stream,
    wait_for_some,
    worst_error,
)
from tests.helpers.gpu_engine import run_on_gpu
from tests.helpers.weight_receivers import TRANSPORTS, connected, rank_zero


def test_ids_and_logprobs_are_exact(engine: SGLangEngine, references: list[Any]) -> None:
    assert engine.health()
    result = stream(engine.url(), prompts(1)[0], 40)
    assert len(result.ids) == len(result.logprobs) == 40
    assert worst_error(result, references) < FLOAT32.worst


def test_a_request_in_flight_survives_updates(
    engine: SGLangEngine, random_models: list[Path], references: list[Any]
) -> None:
    weights = [load_file(path / "model.safetensors") for path in random_models]
    sender = WeightSender(engine, "in-flight")

    def update(version: str) -> None:
        sender.update(weights[int(version) % 2], version)

    check_streams_through_updates(engine, update, references, FLOAT32, new_tokens=400)
    sender.close()


def test_the_trainer_agrees_before_and_after_a_push(
    engine: SGLangEngine, random_models: list[Path], tmp_path: Path
) -> None:
    args = run_on_gpu(random_models[0], tmp_path, device="cpu", train_dtype="float32")
    agreement = check_the_trainer_agrees(engine, args, FLOAT32)
    assert float(agreement.moved.mean()) > 10 * FLOAT32.worst, "the step changed nothing that one can see"
    with rank_zero(), connected(args, [local_handle(engine)]) as sync:
        sync.push(iter(load_file(random_models[0] / "model.safetensors").items()), "2")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_push_by_each_transport_is_exact(
    engine: SGLangEngine, random_models: list[Path], references: list[Any], tmp_path: Path, transport: str
) -> None:
    args = Arguments(
        run_dir=str(tmp_path),
        hf_checkpoint=str(random_models[0]),
        train_dtype="float32",
        device="cpu",
        update_weight_buffer_size=1 << 15,
        check_weight_update_equal=True,
        distributed_timeout_minutes=1,
        **TRANSPORTS[transport],
    )
    result = Stream(prompts(1)[0])
    with rank_zero(), connected(args, [local_handle(engine)]) as sync, ThreadPoolExecutor(1) as pool:
        running = pool.submit(stream, engine.url(), result.prompt, 300, result)
        wait_for_some(result, running)
        for version in ("1", "2"):
            sync.push(iter(load_file(random_models[int(version) % 2] / "model.safetensors").items()), version)
            assert engine.get_weight_version() == version
        running.result()
    assert worst_error(result, references) < FLOAT32.worst
    assert worst_error(stream(engine.url(), prompts(2)[1], 10), references) < FLOAT32.worst


def test_a_sleeping_engine_holds_requests_through_a_push(
    engine: SGLangEngine, random_models: list[Path], references: list[Any], tmp_path: Path
) -> None:
    """The calls of ``--offload-rollout`` in their order. Without a GPU no memory is freed, and all else is as with one."""
    args = Arguments(
        run_dir=str(tmp_path),
        hf_checkpoint=str(random_models[0]),
        device="cpu",
        train_dtype="float32",
        distributed_timeout_minutes=1,
        colocate=True,
        **TRANSPORTS["shared"],
    )
    before, during = (Stream(prompt) for prompt in prompts(2))
    with rank_zero(), connected(args, [local_handle(engine)]) as sync, ThreadPoolExecutor(2) as pool:
        running = [pool.submit(stream, engine.url(), before.prompt, 300, before)]
        wait_for_some(before, running[0])
        for version in ("1", "2"):
            engine.sleep()
            engine.sleep()
            assert engine.health()
            if version == "1":
                running.append(pool.submit(stream, engine.url(), during.prompt, 20, during))
            engine.wake(WEIGHTS)
            sync.push(iter(load_file(random_models[int(version) % 2] / "model.safetensors").items()), version)
            assert engine.get_weight_version() == version
            if version == "1":
                assert not during.ids, "no request runs before the cache is back"
            engine.wake(CACHE)
            engine.wake(CACHE)
        for one in running:
            one.result()
    assert (len(before.ids), len(during.ids)) == (300, 20)
    assert max(worst_error(result, references) for result in (before, during)) < FLOAT32.worst


def test_its_workers_are_forks(engine: SGLangEngine) -> None:
    """A spawned worker would have a resource tracker beside it, and would have imported SGLang again."""
    titles = [" ".join(child.cmdline()).strip() for child in psutil.Process(engine.status()["pid"]).children()]
    assert sorted(titles) == ["sglang::detokenizer", "sglang::scheduler"]


def test_it_imports_no_other_model(engine: SGLangEngine) -> None:
    log = engine.process.log_path.read_text(errors="replace")
    assert "Load weight end" in log
    assert "when loading sglang.srt.models." not in log, (
        "on a CPU some of the others cannot be imported, and SGLang says so"
    )


def test_nothing_of_it_can_be_reached_from_outside(engine: SGLangEngine) -> None:
    server = psutil.Process(engine.status()["pid"])
    assert not reachable_from_outside([server, *server.children(recursive=True)])


def test_what_the_server_refuses_is_an_error_with_its_words(engine: SGLangEngine) -> None:
    with pytest.raises(EngineError, match="begin_weight_update"):
        engine.update_weights_from_distributed(["x"], ["float32"], [[1]], "nobody")
    engine.begin_weight_update()
    engine.hold_after_failed_update()
    engine.begin_weight_update()
    engine.end_weight_update("6")
    engine.continue_generation()
    assert engine.get_weight_version() == "6"


def ask_until_it_listens(url: str) -> Any:
    body = {"input_ids": prompts(1)[0], "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return httpx.post(f"{url}/generate", json=body, timeout=WAIT_SECONDS, trust_env=False).json()
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def test_a_crashed_engine_comes_back_on_its_port(engine: SGLangEngine) -> None:
    url, pid, starts, files = engine.url(), engine.status()["pid"], engine.status()["starts"], files_of(engine)
    engine.kill()
    assert not engine.alive()
    assert not engine.health()
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(ask_until_it_listens, url)
        assert engine.restart_if_dead(hold=True)
        assert not engine.restart_if_dead()
        assert not early.done(), "a request was served before the engine was given weights"
        engine.set_weight_version("0")
        engine.continue_generation()
        spans = early.result(WAIT_SECONDS)["meta_info"]["weight_versions"]
        assert {span["version"] for span in spans} == {"0"}
    assert engine.url() == url
    assert engine.status()["pid"] != pid
    assert engine.status()["starts"] == starts + 1
    assert not group_alive(pid)
    assert len(stream(url, prompts(1)[0], 4).ids) == 4
    gone(files)


def test_an_external_engine_goes_on_with_whole_weights_when_its_run_is_gone(engine: SGLangEngine) -> None:
    """In the middle of a push: the engine holds a request, a session is open, and half of the weights could be new."""
    prompt = prompts(1)[0]
    before = stream(engine.url(), prompt, 4)
    words = ["held", "loading"]
    engine.pause_generation()
    engine.begin_weight_update()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(stream, engine.url(), prompt, 4)
        assert "with the weights of" in (follow(engine.url(), words) or "")
        answer = waiting.result(60)
    assert len(answer.ids) == len(before.ids) == 4
    assert {span["version"] for span in answer.last["meta_info"]["weight_versions"]} == {DEFAULT_VERSION}
    engine.begin_weight_update()
    engine.end_weight_update("0")  # the weights that it has; later tests count from here


def test_an_engine_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    engine = SGLangEngine(engine_arguments(tmp_path / "no-model", tmp_path), EngineSpec("prm", 3, 1))
    with pytest.raises(EngineError, match="engine-prm-3 ended with status") as caught:
        engine.start()
    assert "no-model" in str(caught.value)
    engine.stop()
