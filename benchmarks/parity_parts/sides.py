"""The sides of a comparison: log probabilities of given tokens by an engine, by the trainer with each choice of kernels, and in float32."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import torch
from torch import Tensor

from benchmarks.parity_parts import engine_order
from benchmarks.parity_parts.errors import TEMPERATURE, in_float32, log_probs
from groundwork.network import find_available_port
from slime.args import Arguments
from slime.arguments.parser import build_parser, read_arguments
from slime.arguments.placement import EngineSpec
from slime.backends.fsdp_utils.backend import FSDPTrainActor
from slime.backends.fsdp_utils.model import full_weights
from slime.backends.trainer.micro_batch import RolloutShard
from slime.rollout.train_data import split_by_dp

RANK, ADAPTER_SPREAD = 16, 0.01
ANSWER_SECONDS = 300.0
REFERENCE = "as written"
AS_WRITTEN = "--fused-kernels none --attn-implementation sdpa --logprob-kernel torch"
LORA = f"{AS_WRITTEN} --use-lora --lora-rank {RANK} --lora-kernel"
CHOICES = {
    REFERENCE: AS_WRITTEN,
    "logprob-kernel triton": "--logprob-kernel triton",
    "fused-kernels liger": "--fused-kernels liger",
    "fused-kernels compile": "--fused-kernels compile --attn-implementation varlen",
    "attention cudnn": "--attn-implementation cudnn",
    "attention varlen": "--attn-implementation varlen",
    "attention auto": "--attn-implementation auto",
    "attention flash 2": "--attn-implementation flash_attention_2",
    "attention flash 4": "--attn-implementation flash_attention_4",
    "attention eager": "--attn-implementation eager",
    "LoRA, peft": f"{LORA} peft",
    "LoRA, fused": f"{LORA} fused",
}
"""What the trainer computes with, by the flags that say so."""
BESIDE = {"LoRA, fused": "LoRA, peft"}
"""What a choice is compared with, if not with `REFERENCE`."""


@dataclass(frozen=True)
class Answer:
    """A prompt, and what was sampled after it; ``log_probs`` are the engine's, if one sampled it."""

    prompt: list[int]
    ids: list[int]
    log_probs: list[float] | None = None


def prompts(count: int, length: int, vocabulary: int) -> list[list[int]]:
    """Return ``count`` prompts of random ids."""
    source = random.Random(5)
    return [[source.randrange(vocabulary) for _ in range(length)] for _ in range(count)]


def arguments(words: str, model: str, device: str) -> tuple[Arguments, list[str]]:
    """Return a trainer's arguments with the flags ``words``, and why this machine cannot run them."""
    fixed = (
        f"--device {device} --train-dtype bfloat16 --train-backend fsdp --debug-train-only --load-debug-rollout-data none "
        "--disable-rollout-global-dataset --rollout-batch-size 1 --num-rollout 1 --use-dynamic-batch-size "
        f"--max-tokens-per-gpu 4096 --rollout-temperature {TEMPERATURE}"
    )
    given = ["--gpu-memory-gb", "80"] if device == "cuda" else []
    return read_arguments(build_parser(), [*fixed.split(), *given, *words.split(), "--hf-checkpoint", model])


def by_trainer(args: Arguments, answers: Sequence[Answer]) -> tuple[Tensor, Tensor | None]:
    """Return log probabilities ``[N]`` of the training actor's own pass; for a process of its own, because kernels patch classes.

    Adapters get random weights; then the second result is the float32 reference that has them merged.
    """
    actor = FSDPTrainActor(1, 0, "127.0.0.1", find_available_port())
    actor.init(args)
    try:
        policy: Any = actor.backend.model
        _fill_adapters(policy)
        data = split_by_dp(as_training_data(answers), 1, args.changed(global_batch_size=len(answers)))
        shard = RolloutShard(data[0])
        values = dict(zip(shard.partition, actor.backend.policy_pass(shard)[0], strict=True))
        found = torch.cat([values[position].float().cpu() for position in range(len(answers))])
        weights = dict(full_weights(policy, dtype=torch.float32, device=torch.device("cpu"))) if args.use_lora else {}
    finally:
        actor.shutdown()
    if not weights:
        return found, None
    return found, exact_log_probs(args.hf_checkpoint, args.device, answers, weights)


def _fill_adapters(policy: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    for name, parameter in policy.named_parameters():
        if ".lora_B." in name:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * ADAPTER_SPREAD)


def as_training_data(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the answers as training data."""
    return {
        "tokens": [answer.prompt + answer.ids for answer in answers],
        "total_lengths": [len(answer.prompt) + len(answer.ids) for answer in answers],
        "response_lengths": [len(answer.ids) for answer in answers],
        "loss_masks": [[1] * len(answer.ids) for answer in answers],
        "rewards": [0.0] * len(answers),
    }


def exact_log_probs(
    model: str, device: str, answers: Sequence[Answer], weights: dict[str, Tensor] | None = None
) -> Tensor:
    """Return the float32 reference of the checkpoint ``model`` ``[N]``, or of ``weights`` under its names."""
    exact = in_float32(_load(model, device))
    if weights is not None:
        missing, unknown = exact.load_state_dict(weights, strict=False)
        assert not unknown, unknown
        assert set(missing) <= {"lm_head.weight"}, missing  # tied to the embedding
    return _of_answers(log_probs, exact, answers)


def engine_order_log_probs(model: str, device: str, answers: Sequence[Answer]) -> Tensor:
    """Return the log probabilities ``[N]`` with an engine's roundings, in plain torch."""
    return _of_answers(engine_order.log_probs, _load(model, device), answers)


def _load(model: str, device: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).to(device).eval()


def _of_answers(function: Callable[..., Tensor], model: Any, answers: Sequence[Answer]) -> Tensor:
    return torch.cat([function(model, answer.prompt, answer.ids, TEMPERATURE) for answer in answers])


def without_engine(model: str, device: str, asked: Sequence[list[int]], new_tokens: int) -> list[Answer]:
    """Return answers that transformers samples in bfloat16, for a machine without SGLang."""
    hf = _load(model, device)
    found = []
    for seed, prompt in enumerate(asked):
        torch.manual_seed(seed)
        tokens = torch.tensor([prompt], device=device)
        mask = torch.ones_like(tokens)
        settings = {"do_sample": True, "temperature": TEMPERATURE, "top_k": 0, "min_new_tokens": new_tokens}
        out = hf.generate(tokens, attention_mask=mask, max_new_tokens=new_tokens, **settings)
        found.append(Answer(prompt, out[0, len(prompt) :].tolist()))
    return found


def by_engine(model: str, device: str, run_dir: Path, asked: Sequence[list[int]], new_tokens: int) -> list[Answer]:
    """Start an SGLang engine in bfloat16, let it answer all prompts at the same time, and end it.

    A run's engine on a CPU computes in float32; this one does not, so that there is rounding to compare.
    """
    from slime.backends.sglang_utils.engine import SGLangEngine
    from slime.backends.sglang_utils.server_args import CPU_OPTIONS

    args = Arguments(
        run_dir=str(run_dir), hf_checkpoint=model, device=device, sglang_dtype="bfloat16", rollout_num_gpus=1,
        sglang_mem_fraction_static=0.5, sglang_max_total_tokens=40_000, sglang_context_length=4096,
    )  # fmt: skip
    engine = SGLangEngine(args, EngineSpec("policy", 0, 1, (0,) if device == "cuda" else ()))
    try:
        with mock.patch.dict(CPU_OPTIONS, dtype="bfloat16"):
            engine.start()
        with ThreadPoolExecutor(len(asked)) as pool:
            return list(pool.map(lambda prompt: _asked(engine.url(), prompt, new_tokens), asked))
    finally:
        engine.stop()


def _asked(url: str, prompt: list[int], new_tokens: int) -> Answer:
    body = {
        "input_ids": prompt,
        "sampling_params": {"temperature": TEMPERATURE, "max_new_tokens": new_tokens, "ignore_eos": True},
        "return_logprob": True,
    }
    response = httpx.post(f"{url}/generate", json=body, timeout=ANSWER_SECONDS, trust_env=False)
    response.raise_for_status()
    chosen = response.json()["meta_info"]["output_token_logprobs"]
    return Answer(prompt, [entry[1] for entry in chosen], [entry[0] for entry in chosen])
