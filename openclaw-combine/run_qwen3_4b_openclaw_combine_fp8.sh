#!/usr/bin/env bash
# Qwen3-4B, Combine, FP8 key/value cache in the engines, 8 GPUs: 4 train, 2 serve, 2 judge.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --method combine --model qwen3-4B --profile gpu8_fp8 "$@"
