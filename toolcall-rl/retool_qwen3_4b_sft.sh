#!/usr/bin/env bash
# ReTool, Qwen3-4B, supervised start: 8 GPUs train, none serve.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --task toolcall --model qwen3-4B --profile gpu8_sft "$@"
