#!/usr/bin/env bash
# Qwen3-4B, Hybrid, 8 GPUs: 4 train, 2 serve, 2 judge.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --method hybrid --model qwen3-4B "$@"
