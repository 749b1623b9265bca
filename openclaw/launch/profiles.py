"""Defaults per kind of machine. A profile changes defaults of variables, never the meaning of a flag.

A method declares defaults that also depend on it (`openclaw.config.method_config.MethodConfig.profile_defaults`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from groundwork.variables import Value


@dataclass(frozen=True)
class Profile:
    """Defaults of one kind of machine.

    Attributes:
        name: value of ``--profile``.
        device: of trainer and engines.
        variables: defaults of launch variables.
        runtime: defaults of the runtime's variables.
        flags: flags that only this kind of machine needs.
        gpu_memory_gb: GiB of one GPU, for the memory budget on a machine without GPUs.
    """

    name: str
    device: str
    variables: Mapping[str, Value] = field(default_factory=dict)
    runtime: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    gpu_memory_gb: float | None = None


# A reply may wait long for its reader's feedback; after many updates the clipped ratio leaves little to learn.
GPU8 = Profile("gpu8", "cuda", variables={"MAX_WEIGHT_STALENESS": 32}, gpu_memory_gb=80.0)

GPU8_FP8 = replace(
    GPU8,
    name="gpu8_fp8",
    # Weights stay bfloat16: an engine that quantised them at start could not load the trainer's.
    flags=("--sglang-kv-cache-dtype", "fp8_e4m3"),
)

GPU4_LORA = replace(
    GPU8,
    name="gpu4_lora",
    variables={
        **GPU8.variables,
        "NUM_GPUS": 4,
        "ACTOR_GPUS": "2",
        "ROLLOUT_GPUS": "1",
        "PRM_GPUS": "1",
        "TP": 1,
        "PRM_TP": 1,
        "USE_LORA": True,
        "MAX_TOKENS_PER_GPU": 8192,
    },
)

# Computed for Qwen3-1.7B, see instructions/scripts.md. Each engine may take 0.9 of the free memory at its start; the
# number of tokens is the real bound. Short prefill chunks bound the logits of a teacher's answer.
GPU1_24GB = replace(
    GPU4_LORA,
    name="gpu1_24gb",
    variables={
        **GPU4_LORA.variables,
        "NUM_GPUS": 1,
        "ACTOR_GPUS": "1",
        "MAX_RESPONSE_LENGTH": 4096,
        "MEM_FRACTION_STATIC": 0.9,
    },
    runtime={"CONTEXT_LENGTH": "12288", "PRM_MAX_NEW_TOKENS": "2048"},
    flags=(
        "--share-gpu",
        *("--sglang-max-total-tokens", "14336", "--sglang-max-running-requests", "8"),
        *("--sglang-chunked-prefill-size", "1024"),
    ),
    gpu_memory_gb=24.0,
)

TINY_CPU = Profile(
    "tiny_cpu",
    "cpu",
    variables={
        "NUM_GPUS": 3,
        "ACTOR_GPUS": "1",
        "ROLLOUT_GPUS": "1",
        "PRM_GPUS": "1",
        "TP": 1,
        "PRM_TP": 1,
        "SAVE_INTERVAL": 4,
        "NUM_ROLLOUT": 16,
        "WEIGHT_DECAY": 0.0,
        "USE_GRADIENT_CHECKPOINTING": False,
        "MAX_TOKENS_PER_GPU": 4096,
        "MAX_RESPONSE_LENGTH": 160,
    },
    runtime={
        "CONTEXT_LENGTH": "2048",
        "PRM_MAX_NEW_TOKENS": "96",
        "OPENCLAW_JUDGE_PROMPTS": "brief",
        "OPENCLAW_JUDGE_CONCURRENCY": "16",
        "OPENCLAW_OPD_TEACHER_LP_MAX_CONCURRENCY": "8",
        "PRM_M": "1",
    },
    flags=("--serve-when-done",),
)

PROFILES: dict[str, Profile] = {profile.name: profile for profile in (GPU8, GPU8_FP8, GPU4_LORA, GPU1_24GB, TINY_CPU)}
DEFAULT_PROFILE, LORA_PROFILE = GPU8.name, GPU4_LORA.name
