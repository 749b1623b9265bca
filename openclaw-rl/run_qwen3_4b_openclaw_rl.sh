#!/usr/bin/env bash
# Qwen3-4B, Binary RL, 8 GPUs: 4 train, 2 serve, 2 judge.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --method rl --model qwen3-4B "$@"
