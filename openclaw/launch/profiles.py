"""Defaults per kind of machine. A profile changes defaults of variables, never what a flag means.

What depends on the method as well is the method's to say (`openclaw.config.method_config.MethodConfig.profile_defaults`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from openclaw.config.variable import Value


@dataclass(frozen=True)
class Profile:
    """Defaults of one kind of machine.

    Attributes:
        name: as it is typed.
        device: of trainer and engines.
        variables: defaults of launch variables.
        runtime: defaults of the runtime's variables.
        flags: flags that only this machine needs.
        gpu_memory_gb: GiB of one GPU, for the memory budget on a machine without GPUs.
    """

    name: str
    device: str
    variables: Mapping[str, Value] = field(default_factory=dict)
    runtime: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    gpu_memory_gb: float | None = None


# A reply waits for feedback as long as its reader does; after many updates the clipped ratio leaves little of it to learn.
GPU8 = Profile("gpu8", "cuda", variables={"MAX_WEIGHT_STALENESS": 32}, gpu_memory_gb=80.0)

GPU8_FP8 = replace(
    GPU8,
    name="gpu8_fp8",
    # Weights stay bfloat16: an engine that quantised them at its start cannot load the trainer's.
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

# Computed for Qwen3-1.7B, see instructions/scripts.md. Each engine may take 0.9 of what is free when it starts, and the number
# of tokens is the real bound. Short prefill chunks bound the logits of a teacher's answer.
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
