"""A real SGLang engine on a GPU that gets adapters in its own dtype; the body is that of `tests/integration/test_adapter_live.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.figures import record_figure
from slime.args import Arguments
from slime.backends.sglang_utils.engine import SGLangEngine
from tests.helpers.adapter_checks import LORA, check_requests_keep_their_adapter
from tests.helpers.gpu_engine import GPU, engine_on_gpu, run_on_gpu
from tests.helpers.needed import needs

pytestmark = needs("sglang", "peft")


@pytest.fixture(scope="module")
def args(small_qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Arguments:
    return run_on_gpu(small_qwen, tmp_path_factory.mktemp("adapter-engine"), use_lora=True, **LORA)


@pytest.fixture(scope="module")
def engine(args: Arguments) -> Iterator[SGLangEngine]:
    with engine_on_gpu(args) as engine:
        yield engine


def test_each_request_has_the_adapter_it_began_with(args: Arguments, engine: SGLangEngine, small_qwen: Path) -> None:
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(small_qwen, dtype=torch.bfloat16).to(GPU).eval()
    pushed, _ = check_requests_keep_their_adapter(
        args, engine, base, None, device=GPU, new_tokens=1500, short_tokens=200
    )
    size = sum(value.nbytes for value in pushed[0].values())
    record_figure("engine/adapter/size", size / 1e6, "MB")
