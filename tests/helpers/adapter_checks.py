"""What an engine must do with pushed adapters: one body for an engine on a CPU and one on a GPU.

The CPU's run is `tests/integration/test_adapter_live.py`, that on a GPU `tests/gpu/test_adapter_gpu.py`.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import torch
from torch import Tensor

from benchmarks.parity_parts.errors import in_float32
from benchmarks.weight_receiver import local_handle
from slime.args import Arguments
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.weight_sync import BASE
from tests.helpers.engine_streams import (
    WAIT_SECONDS,
    Stream,
    Tolerance,
    checked,
    prompts,
    stream,
    wait_for_some,
)
from tests.helpers.weight_receivers import CPU, connected, rank_zero

RANK, ALPHA = 4, 8
LORA = {"update_weight_mode": "adapter", "lora_rank": RANK, "lora_alpha": ALPHA}
VERSIONS = range(5)
BYTES_OF_A_NAME = 500


def with_lora(engine: Arguments) -> Arguments:
    """Return the arguments of a CPU ``engine`` that gets adapters in float32."""
    own = {"use_lora": True, "train_dtype": "float32", "distributed_timeout_minutes": 1}
    return Arguments(**(vars(engine) | LORA | own))


def adapters(model: Any, targets: list[str], seed: int) -> dict[str, Tensor]:
    """Return random adapters under PEFT's names, in the dtype of ``model`` and on its device."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in targets:
            shapes = {"A": (RANK, module.in_features), "B": (module.out_features, RANK)}
            for side, shape in shapes.items():
                value = torch.randn(shape, generator=generator) * 0.1
                found[f"base_model.model.{name}.lora_{side}.weight"] = value.to(model.device, model.dtype)
    return found


def merged(model: Any, adapter: dict[str, Tensor]) -> Any:
    """Return a copy of ``model`` with the adapter in its weights."""
    result = copy.deepcopy(model)
    for name, module in result.named_modules():
        if f"base_model.model.{name}.lora_A.weight" in adapter:
            lora_a, lora_b = (adapter[f"base_model.model.{name}.lora_{side}.weight"].float() for side in "AB")
            module.weight.data += (ALPHA / RANK * lora_b @ lora_a).to(module.weight.dtype)
    return result


def loaded(engine: SGLangEngine) -> list[str]:
    """Return the names of the pushed adapters that the engine has."""
    models = httpx.get(f"{engine.url()}/v1/models", timeout=WAIT_SECONDS, trust_env=False).json()["data"]
    return [model["id"] for model in models if model["id"].startswith("weights-")]


def error_of(result: Stream, version: str, model: Any, tolerance: Tolerance | None, exact: Any | None = None) -> Tensor:
    """Return the errors of an answer that must be all of ``version``, sampled by ``model``; see `checked`."""
    assert result.last["meta_info"]["weight_version"] == version
    assert [span["version"] for span in result.spans] == [version]
    return checked([result], [model] * 2, tolerance, f"adapter {version}", None if exact is None else [exact] * 2)


def check_requests_keep_their_adapter(
    args: Arguments,
    engine: SGLangEngine,
    base: Any,
    tolerance: Tolerance | None,
    *,
    device: torch.device = CPU,
    new_tokens: int = 600,
    short_tokens: int = 20,
) -> tuple[dict[int, dict[str, Tensor]], Tensor]:
    """Push five adapters, two of them under a request of ``new_tokens``; return them by version, and all tokens' errors.

    After each the base model still answers who asks for it.

    ``base``: the engine's model in transformers, on the device and in the dtype of the adapters.
    """
    pushed = {version: adapters(base, args.lora_target_modules, version) for version in VERSIONS}
    running = [Stream(prompt) for prompt in prompts(2)]
    found = []

    def error(result: Stream, version: int) -> Tensor:
        # Merged in bfloat16, weights would be rounded once more.
        exact = merged(in_float32(base), pushed[version]) if tolerance is None else None
        return error_of(result, str(version), merged(base, pushed[version]), tolerance, exact)

    with rank_zero(), connected(args, [local_handle(engine)], device) as sync, ThreadPoolExecutor(2) as pool:
        in_flight = {}
        for version, adapter in pushed.items():
            sync.push(iter(adapter.items()), str(version))
            size = sum(value.nbytes for value in adapter.values())
            assert size < sync.moved_bytes < size + BYTES_OF_A_NAME * len(adapter)
            assert engine.get_weight_version() == str(version)
            found.append(error(stream(engine.url(), prompts(3)[2], short_tokens), version))
            plain = stream(engine.url(), prompts(3)[2], short_tokens, adapter=BASE)
            found.append(error_of(plain, BASE, base, tolerance))
            if version < len(running):
                own = running[version]
                in_flight[version] = pool.submit(stream, engine.url(), own.prompt, new_tokens, own)
                wait_for_some(own, in_flight[version])
        found += [error(future.result(), version) for version, future in in_flight.items()]
    return pushed, torch.cat(found)
