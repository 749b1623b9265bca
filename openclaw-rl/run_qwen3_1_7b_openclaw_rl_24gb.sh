#!/usr/bin/env bash
# Qwen3-1.7B, Binary RL, LoRA, one GPU with 24 GB that trains, serves and judges.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --method rl --model qwen3-1.7B --profile gpu1_24gb "$@"
