"""Flags of other training cores: some are accepted with one fixed value, some have no effect, the others are refused.

Guarantee: no flag is ignored in silence. A fixed flag accepts only the value that is true here, so old command lines
keep working. A flag without an effect gives a warning that says why. A refused flag still parses, so that the error is about
the flag and not about its value; it says what to use instead. The ``--router-`` flags are refused too, because the run sets
up its own router.
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
        flag: the flag as typed.
        value: the only value; True makes it a switch.
        why: how this core does what the flag asks for.
        instead: what to do for another value; empty for a switch.
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
        "weights are read from and written to Hugging Face folders",
        "weights are read from and written to Hugging Face folders, without Megatron's converter",
    ),
    Fixed("--balance-data", True, "samples are distributed so that every rank gets about the same number of tokens"),
    Fixed("--attention-softmax-in-fp32", True, "every attention kernel here accumulates its softmax in float32"),
    Fixed("--accumulate-allreduce-grads-in-fp32", True, "gradients are float32 and reduced in float32"),
    Fixed("--attention-dropout", 0.0, f"no dropout: {_AGREE}", f"dropout is not supported, because {_AGREE}"),
    Fixed("--hidden-dropout", 0.0, f"no dropout: {_AGREE}", f"dropout is not supported, because {_AGREE}"),
    Fixed("--fsdp-cpu-backend", "gloo", "collectives on host memory", "collectives on host memory use gloo"),
    Fixed(
        "--rollout-data-transport", "object-store", "batches travel through Ray's object store", "nixl is not supported"
    ),
    Fixed("--async-collection", True, "samples are collected asynchronously, while the trainer takes its steps"),
    Fixed(
        "--reward-aggregation", "majority", "the majority of a judge's votes", "the majority of a judge's votes decides"
    ),
)


def add_fixed_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the fixed flags in their own group."""
    group = parser.add_argument_group("fixed values (accepted for command lines of other cores)")
    for fixed in FIXED:
        if fixed.value is True:
            group.add_argument(fixed.flag, action="store_true", default=True, help=fixed.why)
        else:
            text = f"{fixed.value}: {fixed.why}"
            group.add_argument(fixed.flag, type=type(fixed.value), default=fixed.value, metavar="V", help=text)


def check_fixed(args: Arguments) -> list[str]:
    """Return one line per fixed flag that was given another value."""
    return [
        f"{fixed.flag} {value}: {fixed.instead or fixed.why}; use {fixed.value}"
        for fixed in FIXED
        if (value := getattr(args, fixed.attribute)) != fixed.value
    ]


_LOOP = "the rollout function, or the client, decides that"

UNUSED: dict[str, str] = {
    "num-rollout-workers": "one process collects all samples concurrently; more engines answer faster (--rollout-num-gpus)",
    "max-turns": _LOOP,
    "parallel-envs": _LOOP,
    "num-judge-workers": "the judge's engines answer requests concurrently; --prm-num-gpus adds engines",
}
"""Flags that change nothing here, each with the reason. A plugin may declare one of them and give it a meaning."""


def add_unused_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags without an effect, hidden from ``--help``, except those that a plugin has declared."""
    for flag in UNUSED:
        if f"--{flag}" not in parser._option_string_actions:
            parser.add_argument(f"--{flag}", dest=_attribute(flag), nargs="*", help=argparse.SUPPRESS)


def unused_flags(args: Arguments) -> tuple[str, ...]:
    """Return one line per flag without an effect that was given, and remove their attributes from ``args``."""
    given = [flag for flag in UNUSED if vars(args).pop(_attribute(flag), None) is not None]
    return tuple(f"--{flag} has no effect: {UNUSED[flag]}" for flag in given)


_OWN_ROUTER = "is not supported: a run sets up its own router; remove it"
_POLICY = "is not supported: a conversation stays on its engine, and a new one goes to the least busy engine; remove it"
_SPLIT = "is not supported: prefill and decode run in one engine; remove it"
_DISCOVERY = "is not supported; list running engines with --rollout-external-engine-addrs"
_LIMITS = "is not supported: the router accepts every request; limit concurrency with --sglang-server-concurrency"
_HEALTH = "is not supported: the run checks its engines itself; use --rollout-health-check-interval N"
_LOOPBACK = "is not supported: the router listens on loopback only; remove it"
_ENGINE = "is not supported: the router only forwards token ids; configure the engines with --sglang-"
_STORE = "is not supported: the router keeps no history; remove it"

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
    "log-dir log-level": "is not supported: the router logs warnings to RUN_DIR/logs/router-policy.log; remove it",
    "request-timeout-secs": "is not supported; use --sglang-router-request-timeout-secs",
} | {name: _ENGINE + name for name in ("reasoning-parser", "tool-call-parser", "chat-template")}

REFUSED_ROUTER: dict[str, str] = {f"router-{name}": why for names, why in _FAMILIES.items() for name in names.split()}

# Prefix of the attributes that hold refused flags until `refusals` reads them.
REFUSED_PREFIX = "refused_"
_MEGATRON = "is not supported with any back end here; remove it"
_BUFFER = "belongs to an external rollout buffer, which is not implemented; use --rollout-function-path"
_DELTA = "is not supported: --update-weight-mode delta sends index and value, and --check-weight-update-equal verifies them; remove it"
_DISK = "is not supported: engines read --update-weight-disk-dir themselves; remove it"
_CI = "belongs to another project's CI, whose checks are tests here; remove it"
_ROUTER = "is not needed because there is one router; use --router"
_EXTERNAL = "is not implemented yet; use --sglang-router-ip and --sglang-router-port of running engines"
_TEACHER = "is not supported; choose the teacher with --opd-teacher policy or prm, or OPENCLAW_TEACHER_URL"

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
    "release-train": "is not supported: --offload-train frees the trainer's memory without a restart; remove it",
    "rollout-buffer-url": _BUFFER,
    "fetch-trajectory-retry-times": _BUFFER,
    "min-batch-collection-ratio": _BUFFER,
    "rollout-task-type": _BUFFER,
    "update-weight-delta-encoding": _DELTA,
    "update-weight-delta-checksum": _DELTA,
    "update-weight-local-checkpoint-dir": _DISK,
    "custom-update-weight-post-write-path": _DISK,
    "memory-recorder": "is not supported; use --record-memory-history, torch's own recorder",
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
    "fp16": "is not supported; use --train-dtype bfloat16",
    "fsdp-state-dict-cpu-offload": "is not needed: checkpoints are written shard by shard; remove it",
    "opd-type": _TEACHER,
    "opd-teacher-load": _TEACHER,
    "opd-teacher-ckpt-step": _TEACHER,
    "use-distributed-post": "is not needed: one process posts to the engines asynchronously; remove it",
    "keep-old-actor": "is not supported: weights change during a rollout here; use --use-rollout-logprobs, which is exact",
    "ref-ckpt-step": "is not supported; name the folder of that step in --ref-load",
    "model-name": "selects a Megatron weight converter, which Hugging Face weights do not need; remove it",
    "lora-modules-to-save": "is not supported: a LoRA run trains adapters only; train without --use-lora",
    "load-forge-rollout-data": "is not supported; replay with --load-debug-rollout-data PATH",
    "balance-by-flops": "is not supported: samples are balanced over ranks by tokens; remove it",
    "distributed-backend": "follows --device: nccl on GPUs, gloo on a CPU; remove it",
    "log-probs-max-tokens-per-gpu": "is not supported; --max-tokens-per-gpu applies to every pass",
    **REFUSED_ROUTER,
}


def add_refused_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags, hidden from ``--help``; each takes any number of values."""
    for flag in REFUSED:
        parser.add_argument(f"--{flag}", dest=_attribute(flag), nargs="*", help=argparse.SUPPRESS)


def _attribute(flag: str) -> str:
    return f"{REFUSED_PREFIX}{flag.replace('-', '_')}"


def refusals(args: Arguments) -> list[str]:
    """Return one line per refused flag that was given, and remove their attributes from ``args``."""
    lines = []
    for flag, why in REFUSED.items():
        if getattr(args, _attribute(flag)) is not None:
            lines.append(f"--{flag} {why}")
        delattr(args, _attribute(flag))
    return lines
