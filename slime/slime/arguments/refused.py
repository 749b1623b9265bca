"""Flags of the contract that this core does not honour, each with the reason and what to use instead.

Guarantee: none of them is accepted and ignored. They parse, so that the message can be about the flag and not about its value.
"""

from __future__ import annotations

import argparse

from slime.args import Arguments
from slime.arguments.router_flags import REFUSED_ROUTER

# Of the attributes that hold a refused flag until the refusals are read.
REFUSED_PREFIX = "refused_"
_MEGATRON = "is not offered with any back end here; remove it"
_BUFFER = "belongs to an external rollout buffer, which is not implemented; use --rollout-function-path"
_DELTA = (
    "is not offered: --update-weight-mode delta sends index and value, --check-weight-update-equal checks; remove it"
)
_DISK = "is not offered: engines read --update-weight-disk-dir themselves; remove it"
_CI = "belongs to another project's CI; the tests here check it instead"
_ROUTER = "is not needed, there is one router; use --router"
_EXTERNAL = "is not implemented yet; use --sglang-router-ip and --sglang-router-port of engines that run already"
_TEACHER = "is not offered; --opd-teacher policy or prm says who the teacher is"

REFUSED: dict[str, str] = {
    "megatron-config-path": _MEGATRON,
    "qkv-format": _MEGATRON,
    "true-on-policy-mode": _MEGATRON,
    "enable-mtp-training": _MEGATRON,
    "train-memory-margin-bytes": _MEGATRON,
    "disable-weights-backuper": _MEGATRON,
    "qwen-gdn-backend": _MEGATRON,
    "allgather-cp": _MEGATRON,
    "async-save": _MEGATRON,
    "no-save-optim": _MEGATRON,
    "freeze-indexer": _MEGATRON,
    "use-stateless-adam": _MEGATRON,
    "megatron-deepgemm-forward-layers": _MEGATRON,
    "megatron-deepgemm-forward-modules": _MEGATRON,
    "megatron-deepgemm-moe-forward-layers": _MEGATRON,
    "megatron-deepgemm-moe-forward-modules": _MEGATRON,
    "data-pad-size-multiplier": _MEGATRON,
    "recompute-loss-function": _MEGATRON,
    "release-train": "is not offered: --offload-train frees the trainer's memory without starting it again; remove it",
    "rollout-buffer-url": _BUFFER,
    "fetch-trajectory-retry-times": _BUFFER,
    "min-batch-collection-ratio": _BUFFER,
    "rollout-task-type": _BUFFER,
    "update-weight-delta-encoding": _DELTA,
    "update-weight-delta-checksum": _DELTA,
    "update-weight-local-checkpoint-dir": _DISK,
    "custom-update-weight-post-write-path": _DISK,
    "memory-recorder": "is not offered: torch records; use --record-memory-history",
    "ci-test": _CI,
    "ci-disable-kl-checker": _CI,
    "ci-metric-checker-key": _CI,
    "ci-metric-checker-threshold": _CI,
    "ci-save-grad-norm": _CI,
    "ci-load-grad-norm": _CI,
    "ci-train-rollout-logprob-abs-diff-threshold": _CI,
    "use-slime-router": _ROUTER,
    "slime-router-middleware-paths": _ROUTER,
    "slime-router-timeout": _ROUTER,
    "slime-router-max-connections": _ROUTER,
    "slime-router-health-check-failure-threshold": _ROUTER,
    "prefill-num-servers": _EXTERNAL,
    "sglang-config": _EXTERNAL,
    "fp16": "is not offered; use --train-dtype bfloat16",
    "fsdp-state-dict-cpu-offload": "is not needed: checkpoints are written shard by shard; remove it",
    "opd-type": _TEACHER,
    "opd-teacher-load": _TEACHER,
    "opd-teacher-ckpt-step": _TEACHER,
    "use-distributed-post": "is not needed: one process posts to the engines without waiting; remove it",
    "keep-old-actor": "is not offered: weights change within a rollout here; use --use-rollout-logprobs, which is exact",
    "ref-ckpt-step": "is not offered; name the folder of that step in --ref-load",
    "model-name": "names a weight converter of Megatron; Hugging Face weights need none; remove it",
    "lora-modules-to-save": "is not offered: a LoRA run trains adapters only; train without --use-lora",
    "load-forge-rollout-data": "is not offered; replay with --load-debug-rollout-data PATH",
    "balance-by-flops": "is not offered: samples are dealt to ranks by tokens; remove it",
    "distributed-backend": "follows --device: nccl on GPUs, gloo on a CPU; remove it",
    "log-probs-max-tokens-per-gpu": "is not offered; --max-tokens-per-gpu holds for every pass",
    **REFUSED_ROUTER,
}


def add_refused_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags, hidden from ``--help``; each takes any number of values."""
    for flag in REFUSED:
        parser.add_argument(f"--{flag}", dest=_attribute(flag), nargs="*", help=argparse.SUPPRESS)


def _attribute(flag: str) -> str:
    return f"{REFUSED_PREFIX}{flag.replace('-', '_')}"


def refusals(args: Arguments) -> list[str]:
    """Return a line per refused flag that was given, and take their attributes off ``args``."""
    lines = []
    for flag, why in REFUSED.items():
        if getattr(args, _attribute(flag)) is not None:
            lines.append(f"--{flag} {why}")
        delattr(args, _attribute(flag))
    return lines
