"""A real SGLang engine on the CPU that gets adapters: exact, tagged by version, and only the adapter's bytes move."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.weight_receiver import local_handle
from lab.testkit.live_engine import engine_arguments, live_engine
from slime.args import Arguments
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.weight_sync.adapter import adapter_config
from tests.helpers.adapter_checks import check_requests_keep_their_adapter, error_of, loaded, merged, with_lora
from tests.helpers.engine_streams import FLOAT32, WAIT_SECONDS, prompts, stream
from tests.helpers.weight_receivers import connected, rank_zero


@pytest.fixture(scope="module")
def args(tiny_random_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Arguments:
    return with_lora(engine_arguments(tiny_random_model, tmp_path_factory.mktemp("adapter-engine")))


@pytest.fixture(scope="module")
def engine(args: Arguments) -> Iterator[SGLangEngine]:
    with live_engine(args) as engine:
        yield engine


def test_each_request_has_the_adapter_it_began_with(
    args: Arguments, engine: SGLangEngine, references: list[Any]
) -> None:
    pushed, _ = check_requests_keep_their_adapter(args, engine, references[0], FLOAT32)
    with rank_zero(), connected(args, [local_handle(engine)]) as sync:  # as a trainer that is started again
        sync.push(iter(pushed[3].items()), "3")
        sync.push(iter(pushed[4].items()), "4")
        sync.push(iter(pushed[4].items()), "4")
        assert len(loaded(engine)) == 2, loaded(engine)
        body = {"text": ["a", "b"], "sampling_params": {"n": 2, "max_new_tokens": 3}}
        answers = httpx.post(f"{engine.url()}/generate", json=body, timeout=WAIT_SECONDS, trust_env=False).json()
        assert [answer["meta_info"]["weight_version"] for answer in answers] == ["4"] * 4
    others = "weights-9-ffffffff-1"
    engine.load_lora_adapter_from_tensors(others, adapter_config(args), pickle.dumps(pushed[0]), None)
    left = set(loaded(engine)) - {others}
    with rank_zero(), connected(args, [local_handle(engine)]) as sync:
        sync.push(iter(pushed[2].items()), "2")
        sync.push(iter(pushed[3].items()), "3")
        error_of(stream(engine.url(), prompts(3)[2], 20), "3", merged(references[0], pushed[3]), FLOAT32)
        assert len(loaded(engine)) == 3, loaded(engine)
        assert left.isdisjoint(loaded(engine))
        assert others in loaded(engine)
