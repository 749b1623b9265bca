#!/usr/bin/env bash
# ReTool, Qwen3-4B, GRPO: 8 GPUs, 4 train, 4 serve.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --task toolcall --model qwen3-4B --profile gpu8_retool "$@"
