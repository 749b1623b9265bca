#!/usr/bin/env bash
# ReTool, Qwen3-4B, with a judge of each step: 8 GPUs, 2 train, 4 serve, 2 judge.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --task toolcall --model qwen3-4B --profile gpu8_retool_judge "$@"
