"""A real SGLang engine on a GPU in bfloat16, CUDA graphs on: the trainer's log probabilities, and tokens through updates.

The bodies are those of `tests/integration/test_engine_live.py`, which holds them to 1e-4 in float32 on a CPU. Here a float32 reference on
the same tokens decides: the engine's errors are at most 1.5 times the trainer's own (`benchmarks.parity_parts.errors`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.figures import record_figure
from benchmarks.weight_receiver import local_handle
from slime.args import Arguments
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.weight_sync.pushes import make_weight_sync
from tests.helpers.engine_checks import check_streams_through_updates, check_the_trainer_agrees
from tests.helpers.gpu_engine import GPU, engine_on_gpu, other_weights, run_on_gpu
from tests.helpers.needed import needs
from tests.helpers.weight_receivers import rank_zero

pytestmark = needs("sglang")


@pytest.fixture(scope="module")
def args(small_qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Arguments:
    return run_on_gpu(small_qwen, tmp_path_factory.mktemp("engine"), update_weight_transport="shared", share_gpu=True)


@pytest.fixture(scope="module")
def engine(args: Arguments) -> Iterator[SGLangEngine]:
    with engine_on_gpu(args) as engine:
        yield engine


@pytest.fixture(scope="module")
def references(small_qwen: Path) -> list[Any]:
    """The models of even and odd versions, in bfloat16 on the GPU."""
    from transformers import AutoModelForCausalLM

    models = [AutoModelForCausalLM.from_pretrained(small_qwen, dtype=torch.bfloat16).to(GPU).eval() for _ in range(2)]
    models[1].load_state_dict(other_weights(models[0]), strict=True)
    return models


def test_tokens_are_those_of_the_version_they_name(
    args: Arguments, engine: SGLangEngine, references: list[Any]
) -> None:
    """Whole weights by CUDA IPC under eight streams, compared by checksum after every push."""
    named = [dict(model.named_parameters()) for model in references]
    sync = make_weight_sync(args, device=GPU, address="127.0.0.1")
    seconds: list[float] = []

    def update(version: str) -> None:
        torch.cuda.synchronize(GPU)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        sync.push(((name, value.detach()) for name, value in named[int(version) % 2].items()), version)
        end.record()
        torch.cuda.synchronize(GPU)
        seconds.append(start.elapsed_time(end) / 1000.0)

    with rank_zero():
        sync.connect([local_handle(engine)])
        check_streams_through_updates(engine, update, references, None, new_tokens=3000, last_tokens=200)
        sync.close()
    record_figure("engine/push of 0.6B by CUDA IPC with checksums", min(seconds), "s")


def test_the_trainer_agrees_before_and_after_a_push(args: Arguments, engine: SGLangEngine) -> None:
    """The trainer in bfloat16 scores what the engine sampled, before and after a step of its own and a checked push."""
    found = check_the_trainer_agrees(engine, args, None, new_tokens=128)
    for when, values in (("before", found.before), ("after", found.after)):
        record_figure(f"engine/trainer {when} a push/difference, mean", float(values.mean()), "nats")
        record_figure(f"engine/trainer {when} a push/difference, worst", float(values.max()), "nats")
    record_figure("engine/step of the trainer/change, mean", float(found.moved.mean()), "nats")
    assert float(found.moved.mean()) > 3 * float(found.after.mean()), "the step changed nothing that one can see"
