"""A real SGLang engine on the CPU: exact logprobs, weight updates under load, crash and restart, clean end."""

from __future__ import annotations

import json
import random
import threading
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from slime.backends.sglang_utils.engine import SGLangEngine
from slime.backends.sglang_utils.server_args import EngineSpec
from slime.exceptions import EngineError
from slime.utils.process import group_alive
from tests.helpers import tiny_random
from tests.helpers.weight_sender import WeightSender

TEMPERATURE = 0.6
TOLERANCE = 1e-4


def engine_arguments(run_dir: Path, model: Path) -> Namespace:
    return Namespace(
        run_dir=str(run_dir),
        hf_checkpoint=str(model),
        prm_model_path=None,
        seed=1,
        device="cpu",
        weight_update_mode="retract",
        sglang_max_total_tokens=20000,
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two checkpoints of one shape, by the weight version under which they are served."""
    folder = tmp_path_factory.mktemp("models")
    return {version: tiny_random.build(folder / version, seed=seed) for version, seed in (("1", 11), ("2", 12))}


@pytest.fixture(scope="module")
def references(models: dict[str, Path]) -> dict[str, Any]:
    return {name: AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for name, path in models.items()}


@pytest.fixture(scope="module")
def engine(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLangEngine]:
    engine = SGLangEngine(engine_arguments(tmp_path_factory.mktemp("run"), models["1"]), EngineSpec("policy", 0, 1))
    engine.start()
    try:
        yield engine
    finally:
        pid = engine.status()["pid"]
        engine.stop()
        assert not group_alive(pid), "the engine left processes behind"


@dataclass
class Stream:
    """What a streamed request delivered."""

    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    some: threading.Event = field(default_factory=threading.Event)


def stream(url: str, prompt: list[int], new_tokens: int, result: Stream | None = None, rid: str = "") -> Stream:
    result = result or Stream(prompt)
    body: dict[str, Any] = {
        "input_ids": prompt,
        "sampling_params": {"temperature": TEMPERATURE, "max_new_tokens": new_tokens, "ignore_eos": True},
        "return_logprob": True,
        "stream": True,
    }
    if rid:
        body["rid"] = rid
    with httpx.stream("POST", f"{url}/generate", json=body, timeout=60, trust_env=False) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                result.last = json.loads(line.removeprefix("data: "))
                result.ids += result.last["output_ids"]
                result.logprobs += [entry[0] for entry in result.last["meta_info"]["output_token_logprobs"]]
                if len(result.ids) >= 20:
                    result.some.set()
    return result


def worst_error(result: Stream, references: dict[str, Any]) -> float:
    """Largest difference to a float32 forward with the weights that each token says it was sampled with."""
    worst = 0.0
    for span in result.last["meta_info"]["weight_versions"]:
        model = references["1" if span["version"] == "default" else span["version"]]
        with torch.no_grad():
            logits = model(torch.tensor([result.prompt + result.ids])).logits[0].float() / TEMPERATURE
        logprobs = logits.log_softmax(-1)
        for position in range(span["start"], span["end"]):
            expected = logprobs[len(result.prompt) + position - 1, result.ids[position]].item()
            worst = max(worst, abs(expected - result.logprobs[position]))
    return worst


def prompts(count: int, length: int = 24) -> list[list[int]]:
    source = random.Random(5)
    return [[source.randrange(300) for _ in range(length)] for _ in range(count)]


def test_ids_and_logprobs_are_exact(engine: SGLangEngine, references: dict[str, Any]) -> None:
    assert engine.health()
    result = stream(engine.url(), prompts(1)[0], 40)
    assert len(result.ids) == len(result.logprobs) == 40
    assert worst_error(result, references) < TOLERANCE


def test_a_request_in_flight_survives_updates(
    engine: SGLangEngine, models: dict[str, Path], references: dict[str, Any]
) -> None:
    weights = {version: load_file(path / "model.safetensors") for version, path in models.items()}
    sender = WeightSender(engine, "in-flight")
    results = [Stream(prompt) for prompt in prompts(8)]
    with ThreadPoolExecutor(len(results)) as pool:
        done = [pool.submit(stream, engine.url(), result.prompt, 400, result) for result in results]
        for version in ("2", "1", "2"):
            assert all(result.some.wait(30) for result in results)
            for result in results:
                result.some.clear()
            sender.update(weights[version], version)
            assert engine.get_weight_version() == version
        finished = [future.result() for future in done]
    sender.close()
    assert all(len(result.ids) == 400 for result in finished)
    assert max(len(result.last["meta_info"]["weight_versions"]) for result in finished) >= 3
    assert max(worst_error(result, references) for result in finished) < TOLERANCE
    # The prefix cache holds nothing of the old weights.
    again = stream(engine.url(), results[0].prompt, 10)
    assert worst_error(again, references) < TOLERANCE


def test_what_the_server_refuses_is_an_error_with_its_words(engine: SGLangEngine) -> None:
    with pytest.raises(EngineError, match="begin_weight_update"):
        engine.update_weights_from_distributed(["x"], ["float32"], [[1]], "nobody")
    engine.begin_weight_update()
    engine.hold_after_failed_update()
    engine.begin_weight_update()
    engine.end_weight_update("3")
    engine.continue_generation()
    assert engine.get_weight_version() == "3"


def test_a_crashed_engine_comes_back_on_its_port(engine: SGLangEngine) -> None:
    url, pid = engine.url(), engine.status()["pid"]
    engine.kill()
    assert not engine.alive()
    assert not engine.health()
    assert engine.restart_if_dead()
    assert not engine.restart_if_dead()
    assert engine.url() == url
    assert engine.status()["pid"] != pid
    assert engine.status()["starts"] == 2
    assert not group_alive(pid)
    assert len(stream(url, prompts(1)[0], 4).ids) == 4


def test_an_engine_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    engine = SGLangEngine(engine_arguments(tmp_path, tmp_path / "no-model"), EngineSpec("prm", 3, 1))
    with pytest.raises(EngineError, match="engine-prm-3 ended with status") as caught:
        engine.start()
    assert "no-model" in str(caught.value)
    engine.stop()
