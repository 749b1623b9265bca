#!/usr/bin/env bash
# Qwen3-8B, Combine, 8 GPUs: 4 train, 2 serve, 2 judge.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --method combine --model qwen3-8B "$@"
