#!/usr/bin/env bash
# Qwen3-4B with Combine on one machine with 8 GPUs: 4 train, 2 serve, 2 judge.
# --dry-run prints the plan: placement, every variable with its source, every flag.
set -euo pipefail
# shellcheck source=SCRIPTDIR/../scripts/launch.sh
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"

# Flags of slime/train_async.py to add; they win over what the variables set.
CKPT_ARGS=()
ROLLOUT_ARGS=()
OPTIMIZER_ARGS=()
PERF_ARGS=()
SGLANG_ARGS=()
PRM_ARGS=()
CUSTOM_ARGS=()
WANDB_ARGS=()

launch --method combine --model qwen3-4B \
    "${CKPT_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${OPTIMIZER_ARGS[@]}" "${PERF_ARGS[@]}" \
    "${SGLANG_ARGS[@]}" "${PRM_ARGS[@]}" "${CUSTOM_ARGS[@]}" "${WANDB_ARGS[@]}" "$@"
