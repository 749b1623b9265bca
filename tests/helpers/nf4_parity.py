"""Trainer and engine over the same base in NF4: one body for a CPU and a GPU.

The CPU's run is `tests/integration/test_nf4_live.py`, that on a GPU `tests/gpu/test_nf4_gpu.py`.
"""

from __future__ import annotations

import random
from typing import Any

import httpx
import torch
from torch import Tensor

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


def differences(args: Arguments, engine: SGLangEngine, device: torch.device) -> dict[str, Tensor]:
    """Return ``[T]`` differences in nats between trainer and engine: over the ``base``, and with an ``adapter`` that was pushed.

    ``change`` is what the adapter changes of the trainer's own.
    """
    source = random.Random(0)
    ids = [source.randrange(300) for _ in range(TOKENS)]
    batch = build([ids], [TOKENS - 1], packed=True, device=device)
    flags = {name: getattr(args, name) for name in ("train_dtype", "device", "lora_target_modules", *NF4)}
    with rank_zero(), connected(args, [local_handle(engine)], device) as sync, torch.no_grad():
        policy: Any = build_policy(
            trainer_args(args.hf_checkpoint, lora_kernel="fused", **flags), args.hf_checkpoint, device=device
        )
        for name, parameter in policy.named_parameters():
            if ".lora_" in name:
                generator = torch.Generator().manual_seed(len(name))
                parameter.data = (torch.randn(parameter.shape, generator=generator) * 0.1).to(device)

        def own() -> Tensor:
            return policy(batch, temperature=1.0, chunk_size=64)[0].float().cpu()

        with adapters_off(policy):
            base = own()
        found = {"base": (base - engine_logprobs(engine, ids)).abs()}
        sync.push(iter(adapter_weights(policy, device=device).items()), "1")
        found["adapter"] = (own() - engine_logprobs(engine, ids)).abs()
        return found | {"change": (own() - base).abs()}
