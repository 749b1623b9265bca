#!/usr/bin/env bash
# Qwen3-4B, SDPO on raw follow-ups, 8 GPUs: 4 train, 4 serve; no judge.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --method sdpo --model qwen3-4B "$@"
