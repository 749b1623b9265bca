#!/usr/bin/env bash
# ReTool, Qwen3-4B, GRPO: 8 GPUs, 4 train, 4 serve.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
run_name="${RUN_NAME:-retool_qwen3_4b_rl}"
train_qwen3_4b "$@"
