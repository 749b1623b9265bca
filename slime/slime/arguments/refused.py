"""Flags of other training cores: some hold here as they are, all others are refused with what to use instead.

Guarantee: none is accepted and ignored. A fixed flag may be given with the one value that is true here, so old command lines go on
working. A refused flag parses, so that the message can be about the flag and not about its value; ``--router-`` flags are among
them, because the run sets up its router itself.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from slime.args import Arguments


@dataclass(frozen=True)
class Fixed:
    """A flag with one possible value.

    Attributes:
        flag: as it is typed.
        value: what it says; True makes it a switch.
        why: how this core does what the flag says.
        instead: what another value would need; empty for a switch.
    """

    flag: str
    value: Any
    why: str
    instead: str = ""

    @property
    def attribute(self) -> str:
        """Name of the attribute that holds the value."""
        return self.flag.lstrip("-").replace("-", "_")


_AGREE = "the logprobs of one policy must agree between passes"

FIXED = (
    Fixed(
        "--megatron-to-hf-mode",
        "bridge",
        "weights start from and go to Hugging Face folders",
        "weights start from and go to Hugging Face folders, without a converter of Megatron's",
    ),
    Fixed("--balance-data", True, "samples are dealt to ranks so that their tokens balance"),
    Fixed("--attention-softmax-in-fp32", True, "every attention kernel here accumulates its softmax in float32"),
    Fixed("--accumulate-allreduce-grads-in-fp32", True, "gradients are float32 and reduced in float32"),
    Fixed("--attention-dropout", 0.0, f"no dropout: {_AGREE}", f"dropout is not offered, because {_AGREE}"),
    Fixed("--hidden-dropout", 0.0, f"no dropout: {_AGREE}", f"dropout is not offered, because {_AGREE}"),
    Fixed("--fsdp-cpu-backend", "gloo", "collectives on host memory", "collectives on host memory use gloo"),
    Fixed(
        "--rollout-data-transport", "object-store", "batches travel through Ray's object store", "nixl is not offered"
    ),
)


def add_fixed_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags in a group of their own."""
    group = parser.add_argument_group("always so (for command lines of other cores)")
    for fixed in FIXED:
        if fixed.value is True:
            group.add_argument(fixed.flag, action="store_true", default=True, help=fixed.why)
        else:
            text = f"{fixed.value}: {fixed.why}"
            group.add_argument(fixed.flag, type=type(fixed.value), default=fixed.value, metavar="V", help=text)


def check_fixed(args: Arguments) -> list[str]:
    """Return a line per flag that was given another value."""
    return [
        f"{fixed.flag} {value}: {fixed.instead or fixed.why}; use {fixed.value}"
        for fixed in FIXED
        if (value := getattr(args, fixed.attribute)) != fixed.value
    ]


_OWN_ROUTER = "is not offered: a run sets up its router itself; remove it"
_POLICY = "is not offered: a conversation stays on its engine and new ones go to the least busy; remove it"
_SPLIT = "is not offered: prefill and decode run in one engine; remove it"
_DISCOVERY = "is not offered; name engines that run already with --rollout-external-engine-addrs"
_LIMITS = "is not offered: the router lets every request through; bound them with --sglang-server-concurrency"
_HEALTH = "is not offered: the run watches its engines itself; use --rollout-health-check-interval N"
_LOOPBACK = "is not offered: the router listens on loopback only; remove it"
_ENGINE = "is not offered: the router hands on token ids; give the engines --sglang-"
_STORE = "is not offered: the router keeps no history; remove it"

_FAMILIES: dict[str, str] = {
    "policy balance-abs-threshold balance-rel-threshold cache-threshold assignment-mode max-tree-size max-idle-secs": _POLICY,
    "eviction-interval-secs bucket-adjust-interval-secs": _POLICY,
    "prefill-policy decode-policy pd-disaggregation prefill decode mini-lb prefill-selector decode-selector": _SPLIT,
    "service-discovery service-discovery-port service-discovery-namespace selector": _DISCOVERY,
    "max-concurrent-requests queue-size queue-timeout-secs rate-limit-tokens-per-second": _LIMITS,
    """health-failure-threshold health-success-threshold health-check-timeout-secs health-check-interval-secs
    health-check-endpoint disable-health-check cb-failure-threshold cb-success-threshold cb-timeout-duration-secs
    cb-window-duration-secs disable-circuit-breaker""": _HEALTH,
    """client-cert-path client-key-path ca-cert-paths tls-cert-path tls-key-path api-key control-plane-api-keys
    control-plane-audit-enabled jwt-issuer jwt-audience jwt-jwks-uri jwt-role-mapping cors-allowed-origins""": _LOOPBACK,
    """backend history-backend oracle-wallet-path oracle-tns-alias oracle-connect-descriptor oracle-username
    oracle-password oracle-pool-min oracle-pool-max oracle-pool-timeout-secs postgres-db-url postgres-pool-max redis-url
    redis-pool-max redis-retention-days mcp-config-path""": _STORE,
    """max-payload-size dp-aware enable-igw worker-startup-timeout-secs worker-startup-check-interval prometheus-port
    prometheus-host prometheus-duration-buckets request-id-headers shutdown-grace-period-secs retry-max-retries
    retry-initial-backoff-ms retry-max-backoff-ms retry-backoff-multiplier retry-jitter-factor disable-retries
    tokenizer-cache-enable-l0 tokenizer-cache-l0-max-entries tokenizer-cache-enable-l1 tokenizer-cache-l1-max-memory
    enable-trace otlp-traces-endpoint model-path tokenizer-path""": _OWN_ROUTER,
    "log-dir log-level": "is not offered: the router logs warnings to RUN_DIR/logs/router-policy.log; remove it",
    "request-timeout-secs": "is not offered; use --sglang-router-request-timeout-secs",
} | {name: _ENGINE + name for name in ("reasoning-parser", "tool-call-parser", "chat-template")}

REFUSED_ROUTER: dict[str, str] = {f"router-{name}": why for names, why in _FAMILIES.items() for name in names.split()}

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
