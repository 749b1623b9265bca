"""Trainer and engine over the same base in NF4: one body for a CPU and a GPU.

The CPU's run is `tests/integration/test_nf4_live.py`, that on a GPU `tests/gpu/test_nf4_gpu.py`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import httpx
import torch
from torch import Tensor

from benchmarks.parity_parts.errors import exact_products
from benchmarks.weight_receiver import local_handle
from lab.testkit.trainer import trainer_args
from slime.args import Arguments
from slime.backends.fsdp_utils.model import adapter_weights, adapters_off, build_policy
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.backends.trainer.micro_batch import build
from tests.helpers.adapter_checks import LORA
from tests.helpers.engine_streams import WAIT_SECONDS
from tests.helpers.weight_receivers import connected, rank_zero

NF4 = LORA | {"use_lora": True, "base_quantization": "nf4"}
TOKENS = 200


def engine_logprobs(engine: SGLangEngine, ids: list[int]) -> Tensor:
    """Return the engine's log probabilities of all but the first of ``ids``."""
    sampling = {"max_new_tokens": 1, "temperature": 1.0}
    body = {"input_ids": ids, "sampling_params": sampling, "return_logprob": True, "logprob_start_len": 0}
    answer = httpx.post(f"{engine.url()}/generate", json=body, timeout=WAIT_SECONDS, trust_env=False).json()
    return torch.tensor([entry[0] for entry in answer["meta_info"]["input_token_logprobs"][1:]])


@dataclass(frozen=True)
class Scores:
    """Log probabilities ``[T]`` of the same tokens: by the trainer, by the engine, and exactly, of the same numbers in float32."""

    trainer: Tensor
    engine: Tensor
    exact: Tensor


def scores(args: Arguments, engine: SGLangEngine, device: torch.device) -> dict[str, Scores]:
    """Return how trainer and engine score tokens over the ``base``, and with an ``adapter`` that was pushed."""
    source = random.Random(0)
    ids = [source.randrange(300) for _ in range(TOKENS)]
    batch = build([ids], [TOKENS - 1], packed=True, device=device)
    with rank_zero(), connected(args, [local_handle(engine)], device) as sync, torch.no_grad(), exact_products():
        policy, exact = (_policy(args, device, dtype) for dtype in (args.train_dtype, "float32"))

        def compared(asked: Tensor) -> Scores:
            own = (each(batch, temperature=1.0, chunk_size=64)[0].float().cpu() for each in (policy, exact))
            return Scores(next(own), asked, next(own))

        with adapters_off(policy), adapters_off(exact):
            base = compared(engine_logprobs(engine, ids))
        sync.push(iter(adapter_weights(policy, device=device).items()), "1")
        return {"base": base, "adapter": compared(engine_logprobs(engine, ids))}


def _policy(args: Arguments, device: torch.device, dtype: str) -> Any:
    """Return the trainer's model over the base in NF4, with an adapter whose values bfloat16 has."""
    flags = {name: getattr(args, name) for name in ("device", "lora_target_modules", *NF4)}
    own = trainer_args(args.hf_checkpoint, lora_kernel="fused", train_dtype=dtype, **flags)
    policy: Any = build_policy(own, args.hf_checkpoint, device=device)
    for name, parameter in policy.named_parameters():
        if ".lora_" in name:
            generator = torch.Generator().manual_seed(len(name))
            values = (torch.randn(parameter.shape, generator=generator) * 0.1).bfloat16()
            parameter.data = values.to(device, parameter.dtype)
    return policy
