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
        tuned_as: profile whose defaults of a method hold here, because the model is the same; default: this one.
        judges: whether it has room for a judge engine.
        service: training back end that is a service and samples, too, so that the run needs no GPU; None: ranks and engines.
    """

    name: str
    device: str
    variables: Mapping[str, Value] = field(default_factory=dict)
    runtime: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    gpu_memory_gb: float | None = None
    tuned_as: str | None = None
    judges: bool = True
    service: str | None = None

    def of_method(self, defaults: Mapping[str, Mapping[str, Value]]) -> Mapping[str, Value]:
        """Return what a method's ``profile_defaults`` say about this profile."""
        return defaults.get(self.tuned_as or self.name, {})


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

# Computed for Qwen3-4B, see instructions/small_cards.md. Trainer and engine each hold the base in NF4; somebody else judges.
GPU1_16GB = replace(
    GPU1_24GB,
    name="gpu1_16gb",
    variables={**GPU1_24GB.variables, "MAX_TOKENS_PER_GPU": 4096},
    runtime={"CONTEXT_LENGTH": "8192", "PRM_MAX_NEW_TOKENS": "2048"},
    flags=(*GPU1_24GB.flags, "--sglang-max-total-tokens", "12288", "--base-quantization", "nf4"),
    gpu_memory_gb=16.0,
    judges=False,
)

GPU1_12GB = replace(
    GPU1_16GB,
    name="gpu1_12gb",
    variables={**GPU1_16GB.variables, "MAX_RESPONSE_LENGTH": 2048},
    runtime={"CONTEXT_LENGTH": "4096", "PRM_MAX_NEW_TOKENS": "2048"},
    flags=(*GPU1_16GB.flags, "--sglang-max-total-tokens", "6144"),
    gpu_memory_gb=12.0,
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
        "OPENCLAW_MOST_LESSONS": "2",
        "OPENCLAW_JUDGE_CONCURRENCY": "16",
        "OPENCLAW_OPD_TEACHER_LP_MAX_CONCURRENCY": "8",
        "PRM_M": "1",
    },
    flags=("--serve-when-done",),
)

# The tiny model on one GPU. Its checkpoint is in float32, which the attention kernels of a GPU do not know.
TINY_GPU = replace(
    TINY_CPU,
    name="tiny_gpu",
    device="cuda",
    variables={**TINY_CPU.variables, "NUM_GPUS": 1, "MEM_FRACTION_STATIC": 0.9},
    flags=(
        *TINY_CPU.flags,
        *("--share-gpu", "--sglang-dtype", "bfloat16"),
        *("--sglang-max-total-tokens", "65536", "--sglang-max-running-requests", "32"),
    ),
    gpu_memory_gb=16.0,
    tuned_as=TINY_CPU.name,
)

# A tenth of the rate of the adapter. The rank is what programs of the Tinker interface take.
TINKER = Profile(
    "tinker",
    "cpu",
    variables={
        **{"NUM_GPUS": 1, "ACTOR_GPUS": "0", "ROLLOUT_GPUS": "0", "PRM_GPUS": "0", "TP": 1, "PRM_TP": 1},
        **{"USE_LORA": True, "LORA_RANK": 32, "LEARNING_RATE": 1e-5, "WEIGHT_DECAY": 0.0, "BATCH_SIZE": 4},
        **{"SAVE_INTERVAL": 20, "NUM_ROLLOUT": 1000, "MAX_WEIGHT_STALENESS": 32},
    },
    runtime={"OPENCLAW_JUDGE_GRAMMAR": "0", "OPENCLAW_TEMPERATURE": "1.0"},
    service="tinker",
)
FIREWORKS = replace(TINKER, name="fireworks", service="fireworks")

# The tiny model at a service, which is a server on this machine.
TINY_TINKER = replace(
    TINY_CPU,
    name="tiny_tinker",
    variables={**TINKER.variables, "LORA_RANK": 16, "SAVE_INTERVAL": 4, "NUM_ROLLOUT": 16, "MAX_RESPONSE_LENGTH": 160},
    runtime={**TINY_CPU.runtime, **TINKER.runtime},
    tuned_as=TINY_CPU.name,
    service="tinker",
)

_ALL = (TINKER, FIREWORKS, TINY_TINKER, GPU8, GPU8_FP8, GPU4_LORA, GPU1_24GB, GPU1_16GB, GPU1_12GB, TINY_CPU, TINY_GPU)
PROFILES: dict[str, Profile] = {profile.name: profile for profile in _ALL}
DEFAULT_PROFILE, LORA_PROFILE = GPU8.name, GPU4_LORA.name
