"""A real SGLang engine on the CPU that gets adapters: exact, tagged by version, and only the adapter's bytes move."""

from __future__ import annotations

import copy
import pickle
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from torch import Tensor

from benchmarks.weight_receiver import LocalHandle
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.weight_sync.adapter import adapter_config
from tests.helpers.arguments import default_args
from tests.helpers.live_engine import engine_arguments, live_engine
from tests.helpers.weight_receivers import connected, rank_zero
from tests.integration.test_engine_live import (
    TOLERANCE,
    WAIT_SECONDS,
    Stream,
    prompts,
    stream,
    wait_for_some,
    worst_error,
)

RANK, ALPHA = 4, 8
LORA = {"update_weight_mode": "adapter", "lora_rank": RANK, "lora_alpha": ALPHA, "train_dtype": "float32"}
BYTES_OF_A_NAME = 500


@pytest.fixture(scope="module")
def args(tiny_random_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    run_dir = tmp_path_factory.mktemp("adapter-engine")
    base = engine_arguments(tiny_random_model, run_dir)
    return default_args(**(vars(base) | LORA | {"use_lora": True, "distributed_timeout_minutes": 1}))


@pytest.fixture(scope="module")
def engine(args: Namespace) -> Iterator[SGLangEngine]:
    with live_engine(args) as engine:
        yield engine


def adapters(model: Any, targets: list[str], seed: int) -> dict[str, Tensor]:
    """Random adapters under PEFT's names."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in targets:
            shapes = {"A": (RANK, module.in_features), "B": (module.out_features, RANK)}
            for side, shape in shapes.items():
                value = torch.randn(shape, generator=generator) * 0.1
                found[f"base_model.model.{name}.lora_{side}.weight"] = value
    return found


def merged(model: Any, adapter: dict[str, Tensor]) -> Any:
    result = copy.deepcopy(model)
    for name, module in result.named_modules():
        if f"base_model.model.{name}.lora_A.weight" in adapter:
            lora_a, lora_b = (adapter[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
            module.weight.data += ALPHA / RANK * lora_b @ lora_a
    return result


def loaded(engine: SGLangEngine) -> list[str]:
    models = httpx.get(f"{engine.url()}/v1/models", timeout=WAIT_SECONDS, trust_env=False).json()["data"]
    return [model["id"] for model in models if model["id"].startswith("weights-")]


def test_each_request_has_the_adapter_it_began_with(
    args: Namespace, engine: SGLangEngine, references: list[Any]
) -> None:
    pushed = {version: adapters(references[0], args.lora_target_modules, version) for version in range(5)}
    models = {str(version): merged(references[0], adapter) for version, adapter in pushed.items()}
    running = [Stream(prompt) for prompt in prompts(2)]

    def check(result: Stream, version: str) -> None:
        meta = result.last["meta_info"]
        assert meta["weight_version"] == version
        assert [span["version"] for span in meta["weight_versions"]] == [version]
        assert worst_error(result, [models[version]] * 2) < TOLERANCE

    with rank_zero(), connected(args, [LocalHandle(engine)]) as sync, ThreadPoolExecutor(2) as pool:
        in_flight = {}
        for version, adapter in pushed.items():
            sync.push(iter(adapter.items()), str(version))
            size = sum(value.nbytes for value in adapter.values())
            assert size < sync.moved_bytes < size + BYTES_OF_A_NAME * len(adapter)
            assert engine.get_weight_version() == str(version)
            check(stream(engine.url(), prompts(3)[2], 20), str(version))
            if version < len(running):
                in_flight[version] = pool.submit(stream, engine.url(), running[version].prompt, 600, running[version])
                wait_for_some(running[version], in_flight[version])
        for version, future in in_flight.items():
            check(future.result(), str(version))
        sync.push(iter(pushed[4].items()), "4")
        assert len(loaded(engine)) == 2, loaded(engine)
        body = {"text": ["a", "b"], "sampling_params": {"n": 2, "max_new_tokens": 3}}
        answers = httpx.post(f"{engine.url()}/generate", json=body, timeout=WAIT_SECONDS, trust_env=False).json()
        assert [answer["meta_info"]["weight_version"] for answer in answers] == ["4"] * 4
    others = "weights-9-ffffffff-1"
    engine.load_lora_adapter_from_tensors(others, adapter_config(args), pickle.dumps(pushed[0]), None)
    left = set(loaded(engine)) - {others}
    with rank_zero(), connected(args, [LocalHandle(engine)]) as sync:  # as a trainer that is started again
        sync.push(iter(pushed[2].items()), "2")
        sync.push(iter(pushed[3].items()), "3")
        check(stream(engine.url(), prompts(3)[2], 20), "3")
        assert len(loaded(engine)) == 3, loaded(engine)
        assert left.isdisjoint(loaded(engine))
        assert others in loaded(engine)
