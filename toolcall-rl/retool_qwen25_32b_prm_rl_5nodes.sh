#!/usr/bin/env bash
# ReTool, Qwen2.5-32B, with a judge of each step: 5 machines with 8 GPUs: 16 train, 16 serve, 8 judge.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --task toolcall --model qwen2.5-32B --profile nodes4_32b_judge "$@"
