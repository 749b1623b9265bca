#!/usr/bin/env bash
# Qwen3-4B, online experiential learning, 8 GPUs: 4 train, 2 serve, 2 judge.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --method oel --model qwen3-4B "$@"
