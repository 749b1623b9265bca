"""Flags of the contract that this core does not honour, each with the reason and what to use instead.

Guarantee: none of them is accepted and ignored. They parse, so that the message can be about the flag and not about its value.
"""

from __future__ import annotations

import argparse

_MEGATRON = "belongs to the Megatron back end, which is not there yet; FSDP2 shards over all actor GPUs by itself"
_LATER = "is not implemented yet; remove it"
_COLOCATE = "belongs to --colocate, which is not implemented yet"
_BUFFER = "belongs to an external rollout buffer, which is not implemented; use --rollout-function-path"
_DISK = "belongs to weight updates over a disk, which are not implemented yet; weights are broadcast"
_PROFILE = "is not implemented yet; times of each phase are in metrics.jsonl"
_CI = "belongs to another project's CI; the tests here check it instead"

_GROUPS: dict[str, str] = {
    _MEGATRON: """tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size expert-model-parallel-size
        expert-tensor-parallel-size sequence-parallel accumulate-allreduce-grads-in-fp32 attention-softmax-in-fp32
        attention-backend custom-megatron-init-path custom-megatron-before-log-prob-hook-path
        custom-megatron-before-train-step-hook-path megatron-config-path custom-model-provider-path qkv-format
        true-on-policy-mode enable-mtp-training train-memory-margin-bytes disable-weights-backuper qwen-gdn-backend
        allgather-cp async-save no-save-optim freeze-indexer use-stateless-adam megatron-deepgemm-forward-layers
        megatron-deepgemm-forward-modules megatron-deepgemm-moe-forward-layers megatron-deepgemm-moe-forward-modules
        data-pad-size-multiplier recompute-loss-function""",
    "belongs to the Megatron back end; use --gradient-checkpointing": """recompute-granularity recompute-method
        recompute-num-layers""",
    "belongs to the Megatron back end; use --fsdp-cpu-offload": """optimizer-cpu-offload overlap-cpu-optimizer-d2h-h2d
        use-precision-aware-optimizer""",
    "is always 0 here; remove it": "attention-dropout hidden-dropout",
    _COLOCATE: "offload offload-train offload-rollout release-train",
    _BUFFER: "rollout-buffer-url fetch-trajectory-retry-times min-batch-collection-ratio rollout-task-type",
    _DISK: """update-weight-mode update-weight-transport update-weight-disk-dir update-weight-disk-keep-files
        update-weight-delta-encoding update-weight-delta-checksum update-weight-local-checkpoint-dir
        custom-update-weight-post-write-path""",
    _PROFILE: """record-memory-history memory-snapshot-path memory-snapshot-dir memory-snapshot-num-steps memory-recorder
        use-pytorch-profiler profile-step-start profile-step-end profile-target""",
    _CI: """ci-test ci-disable-kl-checker ci-metric-checker-key ci-metric-checker-threshold ci-save-grad-norm
        ci-load-grad-norm ci-train-rollout-logprob-abs-diff-threshold check-weight-update-equal""",
    _LATER: """use-routing-replay use-rollout-routing-replay
        only-train-params-name-list
        freeze-params-name-list keep-old-actor reset-optimizer-states ref-update-interval ref-ckpt-step use-rollout-entropy
        log-multi-turn log-passrate log-reward-category log-correct-samples model-name http-proxy rollout-data-transport
        save-debug-train-data load-debug-rollout-data-subsample
        train-env-vars lora-modules-to-save deterministic-mode eval-max-context-len
        eval-max-prompt-len eval-min-new-tokens eval-tool-key balance-by-flops config""",
    "is not there yet: this folder's environment comes later; remove it": """gui-max-steps gui-sleep-after-execution
        gui-max-image-history-length gui-max-reward-image-history-length gui-wait-after-reset gui-eval-max-steps
        gui-eval-sleep-after-execution gui-eval-wait-after-reset""",
    "is not needed, there is one router; use --router": """use-slime-router slime-router-middleware-paths slime-router-timeout
        slime-router-max-connections slime-router-health-check-failure-threshold""",
    "is not implemented yet; use --sglang-router-ip and --sglang-router-port of engines that run already": "prefill-num-servers sglang-config",
    "is not needed: the optimizer's and the schedule's state are always restored; remove it": "use-checkpoint-lr-scheduler override-lr-scheduler",
    "is not offered; use --lr-warmup-fraction and --lr-decay-style": "warmup-ratio lr-wsd-decay-iters lr-wsd-decay-style",
    "is not offered; use --train-dtype bfloat16": "fp16",
    "is not offered; use --fsdp-cpu-offload": "fsdp-state-dict-cpu-offload fsdp-cpu-backend",
    "is not offered; use --run-dir (TensorBoard writes to its folder tensorboard)": """tensorboard-dir tb-project-name
        tb-experiment-name""",
    "is not offered; set WANDB_BASE_URL, WANDB_RUN_ID": "wandb-host wandb-run-id disable-wandb-random-suffix",
    "is not offered; --opd-teacher policy or prm says who the teacher is": """opd-type opd-teacher-load
        opd-teacher-ckpt-step""",
}

REFUSED: dict[str, str] = {
    **{flag: reason for reason, names in _GROUPS.items() for flag in names.split()},
    "load-forge-rollout-data": "is not offered; replay with --load-debug-rollout-data PATH",
    "use-distributed-post": "is not needed; remove it",
    "multimodal-keys": "is not implemented yet: text only",
    "prm-step-coef": "is not implemented yet; scale the reward in the reward function",
    "prm-sglang-url": "is not offered; use --prm-router-ip and --prm-router-port",
    "wandb-key": "would show a key to every user of the machine; set WANDB_API_KEY instead",
    "log-probs-max-tokens-per-gpu": "is not offered; --max-tokens-per-gpu holds for every pass",
    "dump-details": "is not implemented yet; use --save-debug-rollout-data PATH",
    "skip-eval-before-train": "is not needed: nothing is evaluated before the first step; remove it",
}


def add_refused_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags, hidden from ``--help``; each takes any number of values."""
    for flag in REFUSED:
        parser.add_argument(f"--{flag}", dest=_attribute(flag), nargs="*", help=argparse.SUPPRESS)


def _attribute(flag: str) -> str:
    return f"refused_{flag.replace('-', '_')}"


def refusals(args: argparse.Namespace) -> list[str]:
    """Return a line per refused flag that was given, and take their attributes off ``args``."""
    lines = []
    for flag, why in REFUSED.items():
        if getattr(args, _attribute(flag)) is not None:
            lines.append(f"--{flag} {why}")
        delattr(args, _attribute(flag))
    return lines
